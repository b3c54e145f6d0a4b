"""What the driver of a streaming query is told on Spark 4.1, which does not say where a batch begins; without a JVM."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from penstock.errors import ConfigurationError, DataLost, StreamMissing
from penstock.spark.format.base_stream_reader import Spark41Reader, check_unlimited
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder
from tests.spark.limits import HAS_LIMITS

Make = Callable[..., Spark41Reader]
_SCHEMA = pa.schema([("stream", pa.string()), ("id", pa.string())])


def options(url: str, **given: str) -> SourceOptions:
    starting = {} if "startingTimestamp" in given else {"startingOffsets": "earliest"}
    return SourceOptions.parse({"url": url, "streams": "orders"} | starting | given)


@pytest.fixture
def make(redis_url: str) -> Make:
    return lambda **given: Spark41Reader(options(redis_url, **given), RowBuilder(_SCHEMA))


def add(raw: redis.Redis, count: int, stream: str = "orders") -> list[str]:
    return [raw.xadd(stream, {"data": str(number)}).decode() for number in range(count)]


def rows(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    batches = (reader.read(partition) for partition in reader.partitions(start, end))
    return [row["id"] for batch in itertools.chain.from_iterable(batches) for row in batch.to_pylist()]


def test_batches_take_what_came_since_and_a_restart_repeats_them(make: Make, raw: redis.Redis, redis_url: str) -> None:
    made = add(raw, 10)
    reader = make()
    restarted: list[Any] = [make()]
    if HAS_LIMITS:  # as after an upgrade of Spark
        from penstock.spark.format.stream_reader import StreamReader

        restarted.append(StreamReader(options(redis_url), RowBuilder(_SCHEMA)))
    begin, one = reader.initialOffset(), reader.latestOffset()
    made += add(raw, 5)
    two = reader.latestOffset()
    assert reader.latestOffset() == two
    for each in (reader, *restarted):
        assert rows(each, begin, one) == made[:10]
        assert rows(each, one, two) == made[10:]
        assert each.partitions(two, two) == []


def test_the_first_batch_is_the_same_though_latest_has_moved(make: Make, raw: redis.Redis) -> None:
    add(raw, 10)
    reader = make(startingOffsets="latest")
    reader.initialOffset()
    made = add(raw, 5)
    end = reader.latestOffset()
    add(raw, 7)
    restarted = make(startingOffsets="latest")
    assert rows(restarted, restarted.initialOffset(), end) == made


@pytest.mark.needs_limits
def test_a_checkpoint_of_a_newer_spark_is_read_on(make: Make, raw: redis.Redis, redis_url: str) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from penstock.spark.format.stream_reader import StreamReader

    made = add(raw, 10)
    newer = StreamReader(options(redis_url), RowBuilder(_SCHEMA))
    begin = newer.initialOffset()
    one = newer.latestOffset(begin, ReadAllAvailable())
    made += add(raw, 5)
    reader = make()
    assert rows(reader, begin, one) == made[:10]
    assert rows(reader, one, reader.latestOffset()) == made[10:]


@pytest.mark.acl(stream=("orders", "others"))
def test_a_stream_that_appears_is_read_from_its_first_entry_on(make: Make, raw: redis.Redis) -> None:
    add(raw, 2)
    start = make(streams="o*").latestOffset()
    made = add(raw, 3, "others")
    assert rows(make(streams="o*"), start, make(streams="o*").latestOffset()) == made


def test_a_stream_that_is_not_there_may_have_been_deleted(make: Make) -> None:
    with pytest.raises(
        StreamMissing, match=r"stream 'orders' does not exist.*If .* read it before, the stream was deleted"
    ):
        make().latestOffset()


@pytest.mark.servers("7.0", "valkey")  # older ones do not count: there such a query begins at the end of the stream
def test_a_query_may_begin_at_a_time_that_has_not_come(make: Make, raw: redis.Redis) -> None:
    raw.xadd("orders", {"data": "x"}, id="1000-0")
    reader = make(startingTimestamp="5000")
    start = reader.latestOffset()
    raw.xadd("orders", {"data": "x"}, id="2000-0")
    raw.xadd("orders", {"data": "x"}, id="5000-0")
    assert rows(reader, start, reader.latestOffset()) == ["5000-0"]


@pytest.mark.parametrize("fault", ["trimmed", "deleted", "made anew"])
@pytest.mark.acl(stream=("orders", "others"))
def test_what_is_gone_before_it_was_read_is_told(make: Make, raw: redis.Redis, fault: str) -> None:
    add(raw, 5)
    start = make(streams="o*").latestOffset()
    if fault == "trimmed":
        add(raw, 5)
        raw.xtrim("orders", maxlen=2, approximate=False)
    else:
        raw.delete("orders")
    if fault == "made anew":
        raw.xadd("orders", {"data": "x"}, id="1-1")
    add(raw, 1, "others")
    reader = make(streams="o*")
    with pytest.raises(DataLost, match="are lost"):
        reader.partitions(start, reader.latestOffset())
    careless = make(streams="o*", failOnDataLoss="false")
    expected = {"trimmed": 3, "deleted": 1, "made anew": 2}
    assert len(rows(careless, start, careless.latestOffset())) == expected[fault]


def test_the_group_shows_where_the_last_batch_began(make: Make, raw: redis.Redis) -> None:
    add(raw, 4)
    reader = make(group="lake")
    start, one = reader.initialOffset(), reader.latestOffset()
    reader.partitions(start, one)
    add(raw, 2)
    reader.partitions(one, reader.latestOffset())
    (group,) = raw.xinfo_groups("orders")
    assert group["last-delivered-id"].decode() == one["s"]["orders"]["id"]


def test_limits_are_refused(redis_url: str) -> None:
    check_unlimited(options(redis_url))
    with pytest.raises(
        ConfigurationError, match=r"maxRowsPerTrigger .* in a streaming query needs Spark 4\.2 or newer"
    ):
        check_unlimited(options(redis_url, maxRowsPerTrigger="5"))
