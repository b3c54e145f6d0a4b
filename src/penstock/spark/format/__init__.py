"""The format `redis_streams`: what Spark calls. Only *_reader.py and data_source.py need Spark."""
