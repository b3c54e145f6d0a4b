"""Lets Spark find the format `redis_streams` without a call to `penstock.spark.register`.

PySpark imports every top-level module whose name begins with `pyspark_`, and registers its `DefaultSource`.
"""

import contextlib

# An error here would stop Spark from finding any data source at all. Without the extra there is just nothing to find.
with contextlib.suppress(ImportError):
    from penstock.spark.format.data_source import RedisStreamsSource as DefaultSource

__all__ = ["DefaultSource"]
