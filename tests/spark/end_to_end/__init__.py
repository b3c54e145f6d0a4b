"""The format `redis_streams` in real Spark, as a user has it."""
