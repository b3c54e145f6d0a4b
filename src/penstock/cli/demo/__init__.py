"""`penstock demo`: a queue survives the killing of a worker, on a server of its own, before your eyes."""
