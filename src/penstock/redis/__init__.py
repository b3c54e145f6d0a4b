"""All access to Redis; the only package that imports redis-py."""
