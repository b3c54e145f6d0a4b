"""One module a kind of measurement; each takes a peer and a fresh server and returns figures."""
