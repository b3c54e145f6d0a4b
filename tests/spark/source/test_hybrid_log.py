"""An archive and Redis read as one stream: without gap or repetition, wherever one ends and the other begins."""

from __future__ import annotations

import itertools
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import ConfigurationError, DataLost, StreamMissing
from penstock.ids import parse
from penstock.spark.archive import ArchiveDamaged, compact, file_writer
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.state import ArchiveMissing
from penstock.spark.format import columns
from penstock.spark.format.batch_reader import BatchReader, RangePartition
from penstock.spark.format.stream_reader import StreamReader
from penstock.spark.lake.delta import DeltaLog
from penstock.spark.lake.files import Location
from penstock.spark.source.offsets import Offsets
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder
from tests.spark.archive.streams import Stream, archive, flip_a_bit_of_the_payload, opened

_TEXT = pa.string()
_SCHEMA = pa.schema([("stream", _TEXT), ("id", _TEXT), ("data", pa.binary()), ("fields", pa.map_(_TEXT, pa.binary()))])
ALL, LIMITED = ReadAllAvailable(), ReadMaxRows(1)


class Log:
    """A stream in Redis, archived and trimmed as the test says."""

    def __init__(self, client: redis.Redis, url: str, place: Path, name: str = "orders") -> None:
        self.client, self.url, self.root = client, url, place / f"cold-{secrets.token_hex(4)}"
        self.stream = Stream(name)
        self.archived = self.trimmed = 0
        client.delete(name)

    def add(self, count: int, every_ms: int = 1) -> None:
        start = len(self.stream.entries)
        self.stream.add(count, every_ms=every_ms)
        pipe = self.client.pipeline(transaction=False)
        for entry_id, fields in self.stream.entries[start:]:
            pipe.xadd(self.stream.name, dict(reversed(fields.items())), id=entry_id)  # `data` not in front
        pipe.execute()

    def archive(self, upto: int, **settings: Any) -> None:
        """Archives entries; those that were trimmed before are recorded as lost."""
        start = max(self.archived, self.trimmed)
        if upto > start:
            archive(opened(self.root, fail_on_data_loss=False, **settings), self.stream, start, upto)
            self.archived = upto

    def trim(self, upto: int) -> None:
        if upto > self.trimmed:
            self.client.xtrim(self.stream.name, maxlen=len(self.stream.entries) - upto, approximate=False)
            self.trimmed = upto

    def ids(self, start: int = 0, stop: int | None = None) -> list[str]:
        return [entry_id for entry_id, _ in self.stream.entries[start:stop]]

    def options(self, **given: Any) -> SourceOptions:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        return SourceOptions.parse({"url": self.url, "streams": self.stream.name, "archive": str(self.root)} | texts)

    def batch(self, **given: Any) -> BatchReader:
        return BatchReader(self.options(**given), RowBuilder(_SCHEMA))

    def streaming(self, **given: Any) -> StreamReader:
        return StreamReader(self.options(startingOffsets="earliest", **given), RowBuilder(_SCHEMA))


def in_order(partitions: Sequence[Any]) -> list[Any]:
    """Returns the pieces of partitions as partitions of their own, in the order of their ids."""
    pieces = [piece for partition in partitions for piece in partition.ranges]
    return [RangePartition((piece,)) for piece in sorted(pieces, key=lambda p: (p.stream, parse(p.after)))]


def rows(reader: BatchReader | StreamReader, partitions: Sequence[Any]) -> list[dict[str, Any]]:
    return [row for part in in_order(partitions) for batch in reader.read(part) for row in batch.to_pylist()]


def ids(reader: BatchReader | StreamReader, partitions: Sequence[Any] | None = None) -> list[str]:
    if partitions is None:
        assert isinstance(reader, BatchReader)
        partitions = reader.partitions()
    return [row["id"] for row in rows(reader, partitions)]


def batches(reader: StreamReader, between: Callable[[], None] = lambda: None) -> list[list[str]]:
    """Runs a query until there is nothing new; something may happen between the plan of a batch and its tasks."""
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, LIMITED)) != at:
        between()
        found.append(ids(reader, reader.partitions(at, end)))
        at = end
    return found


def joined(found: list[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(found))


Make = Callable[..., Log]


@pytest.fixture
def make(raw: redis.Redis, redis_url: str, tmp_path: Path) -> Make:
    def made(count: int = 0, archived: int = 0, trimmed: int = 0) -> Log:
        log = Log(raw, redis_url, tmp_path)
        log.add(count)
        log.archive(archived)
        log.trim(trimmed)
        return log

    return made


def test_every_entry_is_read_once_and_looks_the_same_wherever_it_lies(make: Make) -> None:
    log = make(100)
    plain = BatchReader(SourceOptions.parse({"url": log.url, "streams": "orders"}), RowBuilder(_SCHEMA))
    truth = [row | {"fields": sorted(row["fields"])} for row in rows(plain, plain.partitions())]
    log.archive(40)
    reader = log.batch(fetchSize=7, batchRows=11)
    before = rows(reader, reader.partitions())
    assert [row | {"fields": sorted(row["fields"])} for row in before] == truth
    log.archive(60)
    log.trim(59)  # the last archived one is left: servers before 7.0 cannot tell a gap without it
    after = rows(reader, reader.partitions())
    assert after == before  # to the order of the fields: what runs again gives the same rows
    assert batches(log.streaming()) == [log.ids()]


def test_a_query_opens_the_table_once_and_notices_new_commits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(100, archived=40)
    opened_at: list[Location] = []
    open_log = DeltaLog.open
    monkeypatch.setattr(DeltaLog, "open", lambda location: opened_at.append(location) or open_log(location))
    reader = log.batch(minPartitions=3)
    assert ids(reader) == log.ids()
    assert len(opened_at) == 1
    log.archive(60)
    log.trim(59)
    opened_at.clear()
    assert ids(reader) == log.ids()
    assert opened_at == []


def test_an_archive_that_was_created_anew_at_its_path_is_noticed(make: Make) -> None:
    log, now_s = make(30, archived=20), 0.0
    find = lambda: ColdLog.of(log.root, lambda: now_s)  # noqa: E731
    before = find()
    shutil.rmtree(log.root)
    log.archived = 0
    log.archive(30)
    now_s = 5.0
    assert find() is not before
    assert find().coverage("orders").rows == 30
    shutil.rmtree(log.root)
    now_s = 10.0
    with pytest.raises(ArchiveMissing):
        find()


def test_what_is_archived_and_trimmed_after_planning_is_found(make: Make) -> None:
    log = make(200, archived=20)
    reader = log.batch(fetchSize=10, minPartitions=3)
    parts = reader.partitions()
    assert len(parts) >= 3
    log.archive(150)
    log.trim(149)
    compact(log.root, grace_s=0)
    assert ids(reader, parts) == log.ids()

    log = make(200, archived=20)  # and in the middle of a task
    [part] = log.batch(fetchSize=10, batchRows=10).partitions()
    reading = log.batch(fetchSize=10, batchRows=10).read(part)
    found = [row["id"] for batch in itertools.islice(reading, 5) for row in batch.to_pylist()]
    assert 20 < len(found) < 100
    log.archive(180)
    log.trim(179)
    compact(log.root, grace_s=0)
    assert found + [row["id"] for batch in reading for row in batch.to_pylist()] == log.ids()


def test_a_query_may_begin_and_end_inside_the_archive(make: Make) -> None:
    log = make(100, archived=60, trimmed=59)
    at_ms = log.ids()[25].partition("-")[0]
    assert ids(log.batch(startingTimestamp=at_ms)) == log.ids(25)
    assert ids(log.batch(startingOffsets=log.ids()[25], endingOffsets=log.ids()[70])) == log.ids(25, 71)
    assert ids(log.batch(startingOffsets=f"({log.ids()[25]}", endingTimestamp=at_ms)) == []
    assert ids(log.batch(startingTimestamp=at_ms, endingOffsets=log.ids()[30])) == log.ids(25, 31)
    streaming = StreamReader(log.options(startingTimestamp=at_ms), RowBuilder(_SCHEMA))
    assert batches(streaming) == [log.ids(25)]


def test_limits_hold_for_the_archived_part(make: Make) -> None:
    log = make(100, archived=70, trimmed=69)
    assert list(map(len, batches(log.streaming(maxEntriesPerTrigger=30)))) == [30, 30, 30, 10]
    assert joined(batches(log.streaming(maxRowsPerTrigger=30))) == log.ids()
    small = batches(log.streaming(maxBytesPerTrigger=200))
    assert joined(small) == log.ids()
    assert max(map(len, small)) < 30
    start = StreamReader(log.options(startingOffsets=log.ids()[10], maxRowsPerTrigger=25), RowBuilder(_SCHEMA))
    assert list(map(len, batches(start))) == [25, 25, 25, 15]


def test_partitions_follow_the_files_and_the_row_groups_of_big_ones(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "_GROUP_BYTES", 500)
    log = make(400)
    for upto in range(20, 101, 20):
        log.archive(upto)
    log.archive(300)  # one big file
    log.trim(299)
    reader = log.batch(maxRowsPerPartition=50)
    parts = reader.partitions()
    pieces = in_order(parts)
    sizes = [len(ids(reader, [piece])) for piece in pieces]
    assert max(sizes) <= 75
    assert 6 <= len(sizes) <= 14
    ends = {piece.ranges[0].upto for piece in pieces}
    assert ends & {log.ids()[n] for n in (19, 39, 59, 79, 99)}  # ends of files
    assert ids(reader, parts) == log.ids()


def test_a_gap_that_is_in_neither_is_a_loss(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    log = make(100, archived=40, trimmed=55)
    with pytest.raises(DataLost, match=r"orders.*not in the archive"):
        log.batch().partitions()
    assert ids(log.batch(endingOffsets=log.ids()[30])) == log.ids(0, 31)
    assert ids(log.batch(failOnDataLoss=False)) == log.ids(0, 40) + log.ids(55)
    assert "not in the archive; continuing" in caplog.text
    with pytest.raises(DataLost, match="orders"):
        batches(log.streaming())
    assert joined(batches(log.streaming(failOnDataLoss=False))) == log.ids(0, 40) + log.ids(55)


def test_a_loss_that_the_archive_has_recorded_is_one_for_readers_and_is_counted(
    default_server: Any, make: Make
) -> None:
    log = make(100, archived=30, trimmed=45)
    log.archive(80)  # 15 are lost
    log.trim(80)
    with pytest.raises(DataLost, match=r"15 entries after .* not in the archive"):
        ids(log.batch())
    with pytest.raises(DataLost, match="15 entries"):
        batches(log.streaming())
    expected = log.ids(0, 30) + log.ids(45)
    assert ids(log.batch(failOnDataLoss=False)) == expected
    reader = log.streaming(failOnDataLoss=False)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    second = reader.latestOffset(first, ALL)
    assert Offsets.load(second).streams["orders"].lost == 15
    assert ids(reader, reader.partitions(reader.initialOffset(), first)) == log.ids(0, 30)
    assert ids(reader, reader.partitions(first, second)) == log.ids(45)
    assert ids(log.batch(startingOffsets=log.ids()[50])) == log.ids(50)  # behind it nothing is missing


@pytest.mark.acl(stream=("ord*", "nobody"))
def test_a_stream_that_is_gone_from_redis_is_a_loss_and_what_is_archived_can_be_read(make: Make) -> None:
    log = make(50, archived=50)
    log.client.delete("orders")
    with pytest.raises(DataLost, match="the stream was deleted"):
        log.batch().partitions()
    assert ids(log.batch(endingOffsets=log.ids()[20])) == log.ids(0, 21)
    assert ids(log.batch(failOnDataLoss=False)) == log.ids()
    assert ids(log.batch(failOnDataLoss=False, streams="ord*")) == log.ids()  # a pattern finds it in the archive
    with pytest.raises(StreamMissing, match="nobody"):
        log.batch(streams="nobody").partitions()


def test_many_streams_some_of_them_archived(make: Make, raw: redis.Redis) -> None:
    log = make(30, archived=20, trimmed=19)
    for number in range(5):
        for n in range(3):
            raw.xadd(f"orders:{number}", {"data": "x"}, id=f"5-{n + 1}")
    reader = log.batch(streams="orders*")
    assert [len(list(group)) for _, group in itertools.groupby(r["stream"] for r in rows(reader, reader.partitions()))]
    assert len(ids(reader)) == 45


def test_the_columns_of_the_payload_can_be_told_from_the_archive(make: Make) -> None:
    log = make(10, archived=10, trimmed=10)
    options = log.options(payload="json", payloadColumn="p", payloadField="data")
    assert len(columns._sample(options)) == 10


def test_bad_input_and_a_file_that_is_gone_are_told(make: Make, tmp_path: Path) -> None:
    log = make(20, archived=10)
    with pytest.raises(ConfigurationError, match="there is no archive"):
        log.batch(archive=tmp_path / "nowhere").partitions()
    with pytest.raises(ConfigurationError, match="remove option archive"):
        log.options(view="pending", group="g")
    [file] = log.root.glob("stream=*/day=*/*")
    flip_a_bit_of_the_payload(file)
    with pytest.raises(ArchiveDamaged, match="cannot read"):
        ids(log.batch())
    file.unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        ids(log.batch())
    file.write_bytes(b"PAR1nothing")
    with pytest.raises(ArchiveDamaged, match="cannot read"):
        ids(log.batch())


# --- the promise, for any split ------------------------------------------------------------------------

number = st.integers(0, 60)
_SETTINGS = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_SETTINGS
@example(commits=[], trim=0, start=0, stop=7, fetch=1, parts=2, late=[5], every_ms=0)  # split between two entries
@given(
    commits=st.lists(number, max_size=5), trim=number, start=number, stop=number, fetch=st.sampled_from([1, 3, 50]),
    parts=st.integers(1, 5), late=st.lists(number, max_size=2), every_ms=st.sampled_from([0, 1, 40_000_000]),
)  # fmt: skip
def test_any_split_and_any_trimming_of_what_is_archived(
    default_server: Any, make: Make, commits: list[int], trim: int, start: int, stop: int, fetch: int, parts: int,
    late: list[int], every_ms: int,
) -> None:  # fmt: skip
    log = make()
    log.add(3)  # so that there is an archive
    log.archive(3)
    log.add(57, every_ms=every_ms or 1)
    for upto in sorted(commits):
        log.archive(upto)
    log.trim(min(trim, log.archived))
    low, high = sorted((min(start, 59), min(stop, 59)))
    given = {"startingOffsets": log.ids()[low], "endingOffsets": log.ids()[high]}
    reader = log.batch(fetchSize=fetch, minPartitions=parts, maxRowsPerPartition=20, **given)
    planned = reader.partitions()
    for upto in sorted(late):  # after planning
        log.archive(upto)
        log.trim(min(log.archived, upto + 2))
    assert ids(reader, planned) == log.ids(low, high + 1)


_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "archive", "trim", "compact", "lose"]), st.integers(1, 25)), max_size=6
)


@pytest.mark.slow
@_SETTINGS
@given(turns=st.lists(_ACTIONS, min_size=1, max_size=5), limit=st.sampled_from([None, 1, 7, 40]))
def test_a_query_beside_a_run_that_archives_and_a_retention_that_trims(
    default_server: Any, make: Make, turns: list[list[tuple[str, int]]], limit: int | None
) -> None:
    log = make(10)
    log.archive(4)
    lost: set[str] = set()
    read: list[str] = []
    given = {} if limit is None else {"maxRowsPerTrigger": limit}
    reader = log.streaming(failOnDataLoss=False, fetchSize=3, **given)
    at = reader.initialOffset()

    def act(actions: list[tuple[str, int]]) -> None:
        for name, size in actions:
            if name == "add":
                log.add(size)
            elif name == "archive":
                log.archive(min(len(log.stream.entries), log.archived + size))
            elif name == "trim":
                log.trim(min(log.archived, log.trimmed + size))
            elif name == "compact":
                compact(log.root, grace_s=0)
            elif name == "lose" and size > 20:
                upto = min(len(log.stream.entries), log.archived + 2)
                lost.update(log.ids(max(log.archived, log.trimmed), upto))
                log.trim(upto)

    for actions in turns:
        end = reader.latestOffset(at, ALL if limit is None else LIMITED)
        act(actions)
        read += ids(reader, reader.partitions(at, end))
        at = end
    for found in batches_from(reader, at):
        read += found
    assert [each for each in read if each not in lost] == [each for each in log.ids() if each not in lost]
    assert len(read) == len(set(read))


def batches_from(reader: StreamReader, at: dict[str, Any]) -> list[list[str]]:
    found = []
    while (end := reader.latestOffset(at, ALL)) != at:
        found.append(ids(reader, reader.partitions(at, end)))
        at = end
    return found
