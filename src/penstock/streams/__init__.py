"""Producers, consumers and groups on Redis Streams."""
