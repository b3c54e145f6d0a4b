"""What a query reads from."""

from __future__ import annotations

from penstock.spark.source.options import SourceOptions
from penstock.spark.source.redis_log import RedisLog


def log_of(options: SourceOptions) -> RedisLog:
    """Return Redis, or with the option `archive` Redis and the archive together."""
    if options.archive is None:
        return RedisLog(options)
    from penstock.spark.archive.hybrid_log import HybridLog  # tasks of other queries need not load Parquet

    return HybridLog(options)
