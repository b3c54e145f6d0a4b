"""Contract suites for plug-ins of the sync half."""
