"""Redis Streams as a source and sink of PySpark: format `redis_streams`."""

from penstock.spark.registration import register
from penstock.spark.session import session

__all__ = ["register", "session"]
