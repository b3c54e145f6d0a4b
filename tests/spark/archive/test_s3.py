"""An archive in an object store: the same promises as on a disk, with the commits of the table as the only lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis

from penstock import ids
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveConflict, ArchiveRun, compact, read, status, verify
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.read import archive_options
from penstock.spark.lake.files import Location
from penstock.spark.replay import ArchiveOrigin, Replay, Span
from tests.helpers.s3 import BUCKET, S3Server
from tests.spark.archive.streams import Crash, Stream, archive, archived, opened
from tests.spark.end_to_end.queries import column, entry_id, fill, numbers
from tests.spark.end_to_end.queries import read as read_hot
from tests.spark.lake.test_delta import s3_options

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def root(s3: S3Server) -> Location:
    s3.empty()
    return Location.of(f"s3://{BUCKET}/cold", s3_options(s3))


@pytest.fixture
def stream() -> Stream:
    made = Stream("or/ders ä")
    made.add(60)
    return made


def test_killed_at_any_step_and_restarted_every_entry_is_archived_once(root: Location, stream: Stream) -> None:
    archive(opened(root), stream, 0, 10)
    at = 10
    for step in ("written", "checked", "placed", "committed"):

        def crash(name: str, wanted: str = step) -> None:
            if name == wanted:
                raise Crash(name)

        with pytest.raises(Crash):
            archive(opened(root, crash), stream, at, at + 10, cuts=[at + 3])
        assert archived(root, stream.name) in (stream.entries[:at], stream.entries[: at + 10]), step
        archive(opened(root), stream, at, at + 10, cuts=[at + 3])
        at += 10
        assert archived(root, stream.name) == stream.entries[:at]
    assert compact(root, grace_s=0).made == 1
    assert archived(root, stream.name) == stream.entries[:50]
    pages = ColdLog.of(root).pages(stream.name, ids.ZERO, stream.entries[20][0])
    assert [each.decode() for page in pages for each, _ in page] == [each for each, _ in stream.entries[:21]]
    left = [finding.what for finding in verify(root, rows=True).findings]
    assert set(left) <= {"unknown file"}  # which a day later the next run removes
    [found] = status(root)
    assert (found.stream, found.rows, found.files) == (stream.name, 50, 1)


def test_of_two_archivers_one_is_refused(root: Location, stream: Stream) -> None:
    first, second = opened(root), opened(root)
    second.step = lambda name: archive(first, stream, 0, 40) if name == "checked" else None
    with pytest.raises(ArchiveConflict, match="another run"):
        archive(second, stream, 0, 60)
    assert archived(root, stream.name) == stream.entries[:40]
    third = opened(root)
    archive(third, stream, 40, 50)
    with pytest.raises(ArchiveConflict, match="since this one began"):
        archive(first, stream, 50, 60)  # also one after the other, without meeting
    assert archived(root, stream.name) == stream.entries[:50]
    assert verify(root, rows=True).is_sound


@pytest.mark.needs_limits
def test_spark_archives_to_it_reads_it_with_redis_and_replays_it(
    spark: SparkSession, root: Location, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    url, options = stream_server.url, dict(root.options)
    fill(stream_redis, "orders", 200)
    for _ in range(2):  # the second run begins where the table ends
        run = ArchiveRun(root.uri, "orders", {"url": url}, max_batch_rows=150, storage_options=options)
        run.start(spark, once=True).awaitTermination()
    fill(stream_redis, "orders", 100, first=200)
    stream_redis.xtrim("orders", minid=entry_id(200), approximate=False)  # exactly what is archived
    assert [fields["data"] for _, fields in archived(root)] == [b"%d" % n for n in range(200)]
    both = read(spark, root, "orders", hot={"url": url})
    assert sorted(int(bytes(data)) for data in column(both)) == list(range(300))
    assert column(read_hot(spark, url, "orders", **archive_options(root))) == numbers(300)
    assert Replay(ArchiveOrigin(root, "orders", Span()), "again", {"url": url}).run().added == 200
    assert verify(root.uri, rows=True, storage_options=options).is_sound
