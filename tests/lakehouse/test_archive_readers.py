"""Readers that know nothing of Penstock see each row of an archive once, while it grows and is compacted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from penstock.spark.archive import compact
from tests.spark.archive.streams import Stream, archive, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[[], list[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture(params=["spark", "polars"])
def read(request: pytest.FixtureRequest, spark: SparkSession, root: Path) -> Read:
    def with_polars() -> list[str]:
        return pl.read_delta(str(root), columns=["id"])["id"].to_list()

    def with_spark() -> list[str]:
        return [row.id for row in spark.read.format("delta").load(str(root)).select("id").collect()]

    return with_polars if request.param == "polars" else with_spark


def test_each_row_is_seen_once_while_the_archive_grows_and_is_compacted(root: Path, read: Read) -> None:
    stream = Stream()
    stream.add(100, every_ms=1_800_000)  # two days
    ids = [entry_id for entry_id, _ in stream.entries]
    archive(opened(root), stream, 0, 1)
    failures: list[BaseException] = []

    def grow() -> None:
        try:
            archiver = opened(root)
            for n in range(1, 100):
                archive(archiver, stream, n, n + 1)
                if n % 10 == 0:
                    compact(root)
        except BaseException as error:
            failures.append(error)

    growing = threading.Thread(target=grow, daemon=True)
    growing.start()
    seen = []
    while growing.is_alive():
        seen.append(read())
    assert not failures
    for found in [*seen, read()]:
        assert sorted(found) == sorted(ids[: len(found)])
    compact(root, grace_s=0)
    assert sorted(read()) == sorted(ids)
