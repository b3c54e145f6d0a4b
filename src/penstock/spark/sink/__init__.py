"""The sink of format `redis_streams`: rows of a DataFrame become entries of streams."""
