"""Redis Streams as a source and sink of PySpark: format `redis_streams`."""

from penstock.spark.reading.offsets import lag
from penstock.spark.registration import register
from penstock.spark.session import session

__all__ = ["lag", "register", "session"]
