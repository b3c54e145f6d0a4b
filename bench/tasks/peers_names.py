"""The name of the queue, known to the driver without the environment of a peer."""

NAME = "bench"
