"""Files and their batch enter an Iceberg table in one commit. Nothing here needs Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.iceberg import BatchNote, IcebergTable, for_hadoop
from penstock.spark.lake.partitions import Partitions
from penstock.spark.pipeline import Iceberg
from penstock.spark.pipeline.files import BatchKey
from tests.helpers.threads import DEADLINE_S
from tests.spark.pipeline.conftest import iceberg_catalogue, iceberg_rows

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))])
Add = Callable[[BatchKey], bool]


@pytest.fixture
def sink(tmp_path: Path) -> Iceberg:
    return Iceberg("shop.orders", iceberg_catalogue(tmp_path), partition_by=("day",))


@pytest.fixture
def add(sink: Iceberg) -> Add:
    """Adds a file with one row, whose n is the number of the batch, as a driver that starts anew would."""

    def added(key: BatchKey) -> bool:
        table = opened(sink)
        return not table.has(noted(key)) and table.add([file_of(table, key)], noted(key))

    return added


def table_of(sink: Iceberg) -> IcebergTable:
    return IcebergTable(sink.table, sink.catalog, Partitions.of(sink.partition_by))


def problems(sink: Iceberg, schema: pa.Schema = SCHEMA) -> list[str]:
    return list(table_of(sink).problems(schema, is_keyed=False, may_add=False))


def opened(sink: Iceberg) -> IcebergTable:
    table = table_of(sink)
    table.open(SCHEMA)
    return table


def noted(key: BatchKey) -> BatchNote:
    return BatchNote(key.query, "iceberg", key.number)


def file_of(table: IcebergTable, key: BatchKey) -> str:
    """Writes a file with one row, and returns its URL."""
    place = Path(table.location.removeprefix("file://")) / f"{uuid4().hex}.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    day = "monday" if key.number else None
    pq.write_table(pa.table({"n": [key.number], "day": [day], "headers": [[("a", "b")]]}, schema=SCHEMA), place)
    return f"file://{place}"


def loaded(sink: Iceberg) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("penstock", **sink.catalog).load_table(sink.table)


def test_a_batch_is_added_once_and_the_snapshot_tells_which(sink: Iceberg, add: Add) -> None:
    assert [add(BatchKey("q", number)) for number in (0, 0, 1, 1, 0)] == [True, False, True, False, False]
    assert iceberg_rows(dict(sink.catalog), sink.table, "n") == [0, 1]
    summary = loaded(sink).current_snapshot().summary
    assert (summary["penstock.query"], summary["penstock.sink"], summary["penstock.batch"]) == ("q", "iceberg", "1")


def test_another_query_is_another_count(sink: Iceberg, add: Add) -> None:
    assert [add(BatchKey(query, 0)) for query in ("first", "second", "first")] == [True, True, False]


def test_a_batch_is_known_when_its_snapshot_has_expired(sink: Iceberg, add: Add) -> None:
    for number in range(3):
        add(BatchKey("q", number))
    table = loaded(sink)
    old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(loaded(sink).snapshots()) == 1
    assert [add(BatchKey("q", number)) for number in range(4)] == [False, False, False, True]
    assert iceberg_rows(dict(sink.catalog), sink.table, "n") == [0, 1, 2, 3]


def test_a_commit_beside_another_writer_is_repeated(sink: Iceberg, add: Add) -> None:
    add(BatchKey("q", 0))
    late, key = opened(sink), BatchKey("q", 1)
    add(BatchKey("other", 7))
    assert late.add([file_of(late, key)], noted(key))
    assert iceberg_rows(dict(sink.catalog), sink.table, "n") == [0, 1, 7]
    assert not add(key)


def test_writers_that_make_or_widen_a_table_at_the_same_moment_all_get_it(sink: Iceberg) -> None:
    together, wider = threading.Barrier(4, timeout=DEADLINE_S), SCHEMA.append(pa.field("word", pa.string()))

    def open_(schema: pa.Schema) -> None:
        together.wait()
        table_of(sink).open(schema, may_add=True)

    with ThreadPoolExecutor(4) as pool:
        for schema in (SCHEMA, wider):
            list(pool.map(open_, [schema] * 4))
    assert problems(sink, wider) == []


@pytest.mark.parametrize("is_repeated_inside", [True, False])
def test_of_two_drivers_with_the_same_batch_the_second_is_refused(
    sink: Iceberg, add: Add, is_repeated_inside: bool
) -> None:
    add(BatchKey("q", 0))
    if not is_repeated_inside:  # as of older versions of PyIceberg
        loaded(sink).transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    late, key = opened(sink), BatchKey("q", 1)
    assert not late.has(noted(key))
    assert add(key)
    assert not late.add([file_of(late, key)], noted(key))
    assert iceberg_rows(dict(sink.catalog), sink.table, "n") == [0, 1]


def test_a_catalogue_in_a_database_goes_by_its_name(sink: Iceberg, add: Add) -> None:
    add(BatchKey("q", 0))
    named = Iceberg(sink.table, {**sink.catalog, "name": "lake"}, partition_by=sink.partition_by)
    assert not opened(named).has(noted(BatchKey("q", 0)))


def test_looking_makes_nothing_and_tells_what_does_not_fit(sink: Iceberg, add: Add, tmp_path: Path) -> None:
    assert problems(sink) == []
    assert list(tmp_path.iterdir()) == []
    add(BatchKey("q", 0))
    assert problems(sink) == []
    other = pa.schema([("n", pa.string()), ("more", pa.int64())])
    assert problems(Iceberg(sink.table, sink.catalog), other) == [
        "table 'shop.orders': column 'n' is string in the rows and long in the table",
        "table 'shop.orders' has no column 'more'; available: n, day, headers",
        "table 'shop.orders' is partitioned by ['day'], which differs from partition_by",
    ]


def test_hadoop_has_a_name_of_its_own_for_s3() -> None:
    assert for_hadoop("s3://lake/orders") == "s3a://lake/orders"
    assert for_hadoop("file:///lake/s3://x") == "file:///lake/s3://x"
