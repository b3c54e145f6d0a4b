"""Distributes whole streams over consumers, with the wire protocol of redis-stream-client-go."""
