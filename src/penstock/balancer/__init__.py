"""Whole streams shared out over consumers, on the wire with redis-stream-client-go."""
