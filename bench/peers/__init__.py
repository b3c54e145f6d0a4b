"""One module a peer; each runs in that peer's own interpreter and imports nothing of the driver."""
