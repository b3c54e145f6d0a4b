"""Redis Streams as a source and sink of PySpark: format `redis_streams`."""

from penstock.spark.sessions import register, session
from penstock.spark.source.offsets import lag

__all__ = ["lag", "register", "session"]
