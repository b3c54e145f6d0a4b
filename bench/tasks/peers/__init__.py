"""The task queues that are measured; each module is run in its own environment as `fill` or `work`."""
