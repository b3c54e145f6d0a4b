"""What the driver of a streaming query is told, batch by batch; with real servers and without a JVM."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import ConfigurationError, ConnectionFailed, DataLost, StreamMissing
from penstock.spark.format.batch_reader import BatchReader
from penstock.spark.format.stream_reader import StreamReader
from penstock.spark.source.offsets import lag
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder
from penstock.sync import ConsumerGroup, StreamClient

Make = Callable[..., StreamReader]
ALL = ReadAllAvailable()
LIMITED = ReadMaxRows(1)  # Spark hands back what the reader gave; the options count
_SCHEMA = pa.schema([("stream", pa.string()), ("id", pa.string())])


@pytest.fixture
def make(redis_url: str) -> Make:
    def reader(streams: str = "orders", **options: str) -> StreamReader:
        parsed = SourceOptions.parse({"url": redis_url, "streams": streams, "startingOffsets": "earliest"} | options)
        parsed.check_streaming()
        return StreamReader(parsed, RowBuilder(_SCHEMA))

    return reader


def _add(raw: redis.Redis, count: int, stream: str = "orders") -> list[str]:
    pipe = raw.pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(stream, {"data": str(number)})
    return [entry_id.decode() for entry_id in pipe.execute()]


def _rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    batches = (reader.read(partition) for partition in reader.partitions(start, end))
    return [row["id"] for batch in itertools.chain.from_iterable(batches) for row in batch.to_pylist()]


def test_a_batch_takes_everything(make: Make, raw: redis.Redis) -> None:
    made = _add(raw, 1_500)
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert _rows(reader, start, end) == made
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []


def test_a_new_query_begins_at_the_end_unless_told_otherwise(redis_url: str, raw: redis.Redis) -> None:
    _add(raw, 10)
    reader = StreamReader(SourceOptions.parse({"url": redis_url, "streams": "orders"}), RowBuilder(_SCHEMA))
    start = reader.initialOffset()
    made = _add(raw, 5)
    assert reader.initialOffset() == start
    assert _rows(reader, start, reader.latestOffset(start, ALL)) == made


def test_a_query_may_begin_at_a_time_that_has_not_come(redis_url: str, raw: redis.Redis) -> None:
    for ms in (1_000, 2_000):
        raw.xadd("orders", {"data": "x"}, id=f"{ms}-0")
    options = SourceOptions.parse({"url": redis_url, "streams": "orders", "startingTimestamp": "5000"})
    reader = StreamReader(options, RowBuilder(_SCHEMA))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    raw.xadd("orders", {"data": "x"}, id="5000-0")
    assert _rows(reader, start, reader.latestOffset(start, ALL)) == ["5000-0"]


def test_the_first_batch_is_the_same_after_a_restart_though_latest_has_moved(redis_url: str, raw: redis.Redis) -> None:
    def new_reader() -> StreamReader:
        return StreamReader(SourceOptions.parse({"url": redis_url, "streams": "orders"}), RowBuilder(_SCHEMA))

    _add(raw, 10)
    reader = new_reader()
    start = reader.initialOffset()
    made = _add(raw, 5)
    end = reader.latestOffset(start, ALL)
    _add(raw, 7)
    restarted = new_reader()
    assert _rows(restarted, restarted.initialOffset(), end) == made


def test_limits_are_exact_and_every_entry_comes_once(make: Make, raw: redis.Redis) -> None:
    made = _add(raw, 1_000)
    reader = make(maxRowsPerTrigger="300", fetchSize="70", maxRowsPerPartition="100")
    at, sizes, read = reader.initialOffset(), [], []
    while (end := reader.latestOffset(at, LIMITED)) != at:
        rows = _rows(reader, at, end)
        sizes.append(len(rows))
        read += rows
        at = end
    assert sizes == [300, 300, 300, 100]
    assert sorted(read) == sorted(made)


def test_limits_are_exact_where_the_size_of_the_backlog_is_a_guess(make: Make, raw: redis.Redis) -> None:
    # Nothing for a long time, then many at once: by time, next to nothing is left. And no position has a rank.
    for ms in (1_000, 500_000_000, *range(1_000_000_000, 1_000_000_100)):
        raw.xadd("orders", {"data": "x"}, f"{ms}-0")
    reader = make(maxRowsPerTrigger="30", startingOffsets="999999999-0")
    at, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(at, LIMITED)) != at:
        sizes.append(len(_rows(reader, at, end)))
        at = end
    assert sizes == [30, 30, 30, 10]


def test_all_available_overrules_the_limits(make: Make, raw: redis.Redis) -> None:
    made = _add(raw, 100)
    reader = make(maxRowsPerTrigger="10")
    start = reader.initialOffset()
    assert len(_rows(reader, start, reader.latestOffset(start, ALL))) == len(made)


def test_a_limit_in_bytes(make: Make, raw: redis.Redis) -> None:
    for _ in range(10):
        raw.xadd("orders", {"data": b"x" * 996})
    reader = make(maxBytesPerTrigger="3500")
    start = reader.initialOffset()
    assert len(_rows(reader, start, reader.latestOffset(start, LIMITED))) == 3


def test_an_entry_above_the_limit_in_bytes_does_not_stop_the_query(make: Make, raw: redis.Redis) -> None:
    raw.xadd("orders", {"data": b"x" * 10_000})
    reader = make(maxBytesPerTrigger="100")
    start = reader.initialOffset()
    assert len(_rows(reader, start, reader.latestOffset(start, LIMITED))) == 1


@pytest.mark.acl(stream=("a", "b"))
def test_streams_share_a_limit_by_what_they_hold(make: Make, raw: redis.Redis) -> None:
    _add(raw, 900, "a")
    _add(raw, 100, "b")
    reader = make("a,b", maxRowsPerTrigger="100")
    start = reader.initialOffset()
    batches = [reader.read(partition) for partition in reader.partitions(start, reader.latestOffset(start, LIMITED))]
    names = [row["stream"] for batch in itertools.chain.from_iterable(batches) for row in batch.to_pylist()]
    assert (names.count("a"), names.count("b")) == (90, 10)


def test_too_few_rows_wait_for_more_but_not_for_ever(make: Make, raw: redis.Redis) -> None:
    _add(raw, 5)
    reader = make(minRowsPerTrigger="10", maxTriggerDelay="1h")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    _add(raw, 5)
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) != start
    impatient = make(minRowsPerTrigger="1000", maxTriggerDelay="0s")
    assert impatient.latestOffset(start, impatient.getDefaultReadLimit()) != start


def test_available_now_ends_where_it_began_to_count(make: Make, raw: redis.Redis) -> None:
    made = _add(raw, 50)
    reader = make(maxRowsPerTrigger="30")
    reader.prepareForTriggerAvailableNow()
    _add(raw, 50)
    _add(raw, 5, "orders2")
    at, read = reader.initialOffset(), []
    while (end := reader.latestOffset(at, LIMITED)) != at:
        read += _rows(reader, at, end)
        at = end
    assert read == made


def test_new_streams_of_a_pattern_are_read_from_their_first_entry(
    make: Make, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.format.base_stream_reader._DISCOVER_EVERY_S", 0.0)
    first = _add(raw, 5, "orders:1")
    reader = make("orders:*")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert _rows(reader, start, end) == first
    second = _add(raw, 5, "orders:2")
    assert _rows(reader, end, reader.latestOffset(end, ALL)) == second


@pytest.mark.acl(stream=("a", "b"))
def test_a_stream_that_is_not_asked_for_any_more_rests_where_it_is(make: Make, raw: redis.Redis) -> None:
    _add(raw, 3, "a")
    _add(raw, 3, "b")
    both = make("a,b")
    at = both.latestOffset(both.initialOffset(), ALL)
    more_of_a, more_of_b = _add(raw, 2, "a"), _add(raw, 2, "b")
    one = make("a")
    later = one.latestOffset(at, ALL)
    assert _rows(one, at, later) == more_of_a
    assert _rows(both, later, both.latestOffset(later, ALL)) == more_of_b


class TestDataLoss:
    def _trimmed(self, make: Make, raw: redis.Redis, **options: str) -> tuple[StreamReader, dict[str, Any], list[str]]:
        _add(raw, 10)
        reader = make(**options)
        at = reader.latestOffset(reader.initialOffset(), ALL)
        later = _add(raw, 10)
        raw.xtrim("orders", minid=later[4], approximate=False)
        return reader, at, later

    @pytest.mark.servers("7.0", "valkey")
    def test_trimmed_while_the_query_was_down(self, make: Make, raw: redis.Redis) -> None:
        reader, at, later = self._trimmed(make, raw)
        with pytest.raises(DataLost, match=rf"4 entries after .* and before {later[4]} are lost"):
            reader.latestOffset(at, ALL)

    @pytest.mark.servers("7.0", "valkey")
    def test_or_counted(self, make: Make, raw: redis.Redis) -> None:
        reader, at, later = self._trimmed(make, raw, failOnDataLoss="false")
        end = reader.latestOffset(at, ALL)
        assert end["s"]["orders"]["lost"] == 4
        assert _rows(reader, at, end) == later[4:]

    @pytest.mark.servers("6.2")
    def test_a_server_that_does_not_count_makes_it_a_possible_loss(self, make: Make, raw: redis.Redis) -> None:
        reader, at, _ = self._trimmed(make, raw)
        with pytest.raises(DataLost, match="does not count"):
            reader.latestOffset(at, ALL)

    @pytest.mark.servers("7.0", "valkey")
    @pytest.mark.parametrize("gone", [0, 3])
    def test_a_query_that_begins_at_an_entry_that_was_trimmed(
        self, make: Make, raw: redis.Redis, redis_url: str, gone: int
    ) -> None:
        made = _add(raw, 10)
        raw.xtrim("orders", maxlen=6, approximate=False)
        why = rf"entries after .* and before {made[4]} are lost: they were trimmed or deleted before they were read"
        reader = make(startingOffsets=made[gone])
        start = reader.initialOffset()
        with pytest.raises(DataLost, match=why):
            reader.latestOffset(start, ALL)
        given = {"url": redis_url, "streams": "orders", "startingOffsets": made[gone]}
        with pytest.raises(DataLost, match=f"{why}.*startingTimestamp"):
            BatchReader(SourceOptions.parse(given), RowBuilder(_SCHEMA)).partitions()
        rest = BatchReader(SourceOptions.parse(given | {"failOnDataLoss": "false"}), RowBuilder(_SCHEMA))
        read = (batch for partition in rest.partitions() for batch in rest.read(partition))
        assert [row["id"] for batch in read for row in batch.to_pylist()] == made[4:]

    @pytest.mark.servers("7.0", "valkey")
    @pytest.mark.parametrize(
        "given",
        [
            {"startingOffsets": "0-0"},
            {"startingOffsets": "first"},
            {"startingOffsets": "(gone"},
            {"startingTimestamp": "1"},
        ],
        ids=str,
    )
    def test_other_beginnings_before_the_first_entry_lose_nothing(
        self, raw: redis.Redis, redis_url: str, given: dict[str, str]
    ) -> None:
        made = _add(raw, 10)
        raw.xtrim("orders", maxlen=6, approximate=False)
        given = {name: value.replace("first", made[4]).replace("gone", made[2]) for name, value in given.items()}
        reader = StreamReader(
            SourceOptions.parse({"url": redis_url, "streams": "orders", **given}), RowBuilder(_SCHEMA)
        )
        start = reader.initialOffset()
        assert _rows(reader, start, reader.latestOffset(start, ALL)) == made[4:]

    @pytest.mark.servers("7.0", "valkey")
    def test_trimming_what_was_read_is_none(self, make: Make, raw: redis.Redis) -> None:
        _add(raw, 10)
        reader = make()
        at = reader.latestOffset(reader.initialOffset(), ALL)
        later = _add(raw, 10)
        raw.xtrim("orders", minid=later[0], approximate=False)
        assert _rows(reader, at, reader.latestOffset(at, ALL)) == later

    @pytest.mark.servers("7.0", "valkey")
    def test_a_planned_batch_that_is_trimmed_before_it_is_read(self, make: Make, raw: redis.Redis) -> None:
        later = _add(raw, 10)
        reader = make()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        raw.xtrim("orders", minid=later[4], approximate=False)
        with pytest.raises(DataLost, match="4 entries"):
            _rows(make(), start, end)

    def test_a_stream_that_was_deleted_and_made_anew(self, make: Make, raw: redis.Redis) -> None:
        _add(raw, 10)
        reader = make()
        at = reader.latestOffset(reader.initialOffset(), ALL)
        raw.delete("orders")
        with pytest.raises(DataLost, match="deleted"):
            reader.latestOffset(at, ALL)
        raw.xadd("orders", {"data": "x"}, id="5-0")
        with pytest.raises(DataLost, match="created again"):
            reader.latestOffset(at, ALL)
        tolerant = make(failOnDataLoss="false")
        assert _rows(tolerant, at, tolerant.latestOffset(at, ALL)) == ["5-0"]


class TestShadowGroup:
    def _group(self, raw: redis.Redis) -> dict[str, Any]:
        return next(group for group in raw.xinfo_groups("orders") if group["name"] == b"spark")

    def test_the_group_stands_where_the_query_is_committed(self, make: Make, raw: redis.Redis) -> None:
        made = _add(raw, 30)
        reader = make(group="spark", maxRowsPerTrigger="10")
        start = reader.initialOffset()
        first = reader.latestOffset(start, LIMITED)
        second = reader.latestOffset(first, LIMITED)
        assert self._group(raw)["last-delivered-id"].decode() == made[9]
        reader.latestOffset(second, LIMITED)
        assert self._group(raw)["last-delivered-id"].decode() == made[19]

    @pytest.mark.servers("7.0", "valkey")
    def test_the_server_can_tell_its_lag(self, make: Make, raw: redis.Redis) -> None:
        _add(raw, 30)
        reader = make(group="spark", maxRowsPerTrigger="10")
        reader.latestOffset(reader.latestOffset(reader.initialOffset(), LIMITED), LIMITED)
        assert self._group(raw)["lag"] == 20

    def test_retention_waits_for_the_group_before_the_first_entry_of_a_stream_is_read(
        self, make: Make, raw: redis.Redis, redis_url: str
    ) -> None:
        reader = make("orders*", group="spark")
        at = reader.latestOffset(reader.initialOffset(), ALL)
        made = _add(raw, 30)
        raw.xgroup_create("orders", "workers", made[-1])  # others are done with all of it
        reader._discovered_s = -1e9
        end = reader.latestOffset(at, ALL)
        with StreamClient.from_url(redis_url) as client:
            assert ConsumerGroup(client, "orders", "workers").trim(keep=0) == 0
        assert _rows(reader, at, end) == made

    def test_a_group_that_somebody_destroys_is_made_again(self, make: Make, raw: redis.Redis) -> None:
        made = _add(raw, 30)
        reader = make(group="spark", maxRowsPerTrigger="10")
        first = reader.latestOffset(reader.initialOffset(), LIMITED)
        raw.xgroup_destroy("orders", "spark")
        reader.latestOffset(first, LIMITED)
        assert self._group(raw)["last-delivered-id"].decode() == made[9]

    def test_a_stream_that_is_gone_is_told_as_that_and_not_as_a_missing_group(
        self, make: Make, raw: redis.Redis
    ) -> None:
        _add(raw, 10)
        reader = make(group="spark")
        end = reader.latestOffset(reader.initialOffset(), ALL)
        raw.delete("orders")
        with pytest.raises(DataLost, match="the stream was deleted"):
            make(group="spark").latestOffset(end, ALL)

    def test_a_group_with_workers_is_left_alone(self, make: Make, raw: redis.Redis) -> None:
        _add(raw, 3)
        raw.xgroup_create("orders", "spark", "0")
        raw.xreadgroup("spark", "worker", {"orders": ">"}, count=1)
        reader = make(group="spark")
        with pytest.raises(ConfigurationError, match="1 consumers and 1 pending"):
            reader.latestOffset(reader.initialOffset(), ALL)
        forced = make(group="spark", groupForce="true")
        assert forced.latestOffset(forced.initialOffset(), ALL) != forced.initialOffset()

    def test_a_query_may_begin_where_a_group_is(self, make: Make, raw: redis.Redis) -> None:
        made = _add(raw, 10)
        raw.xgroup_create("orders", "spark", made[3])
        reader = make(group="spark", startingOffsets="group")
        start = reader.initialOffset()
        assert _rows(reader, start, reader.latestOffset(start, ALL)) == made[4:]


@pytest.mark.servers("7.0", "valkey")
def test_the_lag_is_in_the_progress(make: Make, raw: redis.Redis) -> None:
    _add(raw, 30)
    reader = make(maxRowsPerTrigger="10")
    end = reader.latestOffset(reader.initialOffset(), LIMITED)
    assert lag(reader.reportLatestOffset(), end) == {"orders": 20}


def test_a_missing_stream_is_told_or_waited_for(make: Make, raw: redis.Redis) -> None:
    with pytest.raises(StreamMissing, match="waitForStreams"):
        make().initialOffset()
    reader = make(waitForStreams="true")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    made = _add(raw, 3)
    assert _rows(reader, start, reader.latestOffset(start, ALL)) == made


def test_an_unreachable_server_is_told() -> None:
    options = SourceOptions.parse({"url": "redis://u:s3cret@127.0.0.1:1", "streams": "a", "retryTimeout": "0s"})
    with pytest.raises(ConnectionFailed) as caught:
        StreamReader(options, RowBuilder(_SCHEMA)).initialOffset()
    assert "127.0.0.1:1" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_planning_looks_at_no_entry_when_counters_tell(make: Make, raw: redis.Redis) -> None:
    _add(raw, 500)
    reader = make(maxRowsPerTrigger="1000")
    start = reader.initialOffset()
    raw.config_resetstat()
    end = reader.latestOffset(start, LIMITED)
    reader.partitions(start, end)
    assert set(raw.info("commandstats")) <= {
        "cmdstat_xinfo",
        "cmdstat_xinfo|stream",
        "cmdstat_config|resetstat",
        "cmdstat_config",
    }
