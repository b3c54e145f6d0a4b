"""An archive over entries that anyone who may XADD can write: nothing stops it, and every byte is there again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.hostile.archive import ArchiveCheck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES = 500
SEED = 20261116


@pytest.mark.needs_limits
def test_hostile_entries_are_archived_verified_read_and_replayed(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    check = ArchiveCheck(spark, stream_server.url, stream_redis, tmp_path / "cold")
    assert check.run(SEED, ENTRIES) == []
    assert len(check.kinds) > ENTRIES
