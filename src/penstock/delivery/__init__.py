"""The one place where messages are published, read, held, renewed, settled, retried, given up and recovered."""
