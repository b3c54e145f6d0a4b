"""The sink of format `redis_streams`: rows of a DataFrame become entries of streams."""

from penstock.spark.sink.writer import make_writer

__all__ = ["make_writer"]
