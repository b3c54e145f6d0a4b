"""What authors of plug-ins need for tests of their sync half: the same suites, generated."""
