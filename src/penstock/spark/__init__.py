"""Redis Streams as a source and sink of PySpark: format `redis_streams`."""
