"""An archive in an object store: the same promises as on a disk, with the commits of the table as the only lock."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock import ids
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveConflict, ArchiveRun, compact, read, status, verify
from penstock.spark.archive.cold_log import ColdLog
from penstock.spark.archive.compact import Compacted
from penstock.spark.archive.read import archive_options
from penstock.spark.lake.files import Location
from penstock.spark.replay import ArchiveOrigin, Replay, Span
from penstock.sync.results import FSBackend
from tests.helpers.s3 import BUCKET, KEY, SECRET, S3Server
from tests.helpers.threads import eventually
from tests.spark.archive.streams import START_MS, Crash, Stream, archive, archived, files_of, opened
from tests.spark.archive.test_maintenance import COMPACT
from tests.spark.archive.test_run import KILLED
from tests.spark.clusters import fast_start
from tests.spark.driver import PATIENCE_S, PYTHONPATH, Driver, Process
from tests.spark.end_to_end.queries import column, entry_id, fill, finished, numbers
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
    replaced = {entry.path for entry in files_of(root, stream.name)}
    assert compact(root, grace_s=0) == Compacted(merged=9, made=1, cleaned=9)
    assert not replaced & {file.path for file in root.store.walk("")}
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
    with pytest.raises(ArchiveConflict, match="since this one started"):
        archive(first, stream, 50, 60)  # also one after the other, without meeting
    assert archived(root, stream.name) == stream.entries[:50]
    assert verify(root, rows=True).is_sound


def test_a_commit_whose_reply_was_lost_is_the_own_one(
    root: Location, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that repeats a put finds the own commit in the way, and reports a conflict."""
    write = DeltaTable.create_write_transaction

    def write_and_conflict(*given: Any, **more: Any) -> None:
        write(*given, **more)
        raise CommitFailedError("the version exists already")

    archiver = opened(root)
    archive(archiver, stream, 0, 10)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_and_conflict)
    archive(archiver, stream, 10, 20)
    archive(archiver, stream, 20, 30)  # no other run has archived meanwhile
    assert compact(root).made == 1
    assert archived(root, stream.name) == stream.entries[:30]
    assert verify(root, rows=True).is_sound


@pytest.mark.slow
@pytest.mark.needs_limits
def test_spark_archives_to_it_reads_it_with_redis_and_replays_it(
    spark: SparkSession, root: Location, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    url, options = stream_server.url, dict(root.options)
    fill(stream_redis, "orders", 200)
    for _ in range(2):  # the second run begins where the table ends
        run = ArchiveRun(root.uri, "orders", {"url": url}, max_batch_rows=150, storage_options=options)
        finished(run.start(spark, once=True))
    fill(stream_redis, "orders", 100, first=200)
    stream_redis.xtrim("orders", minid=entry_id(200), approximate=False)  # exactly what is archived
    assert [fields["data"] for _, fields in archived(root)] == [b"%d" % n for n in range(200)]
    both = read(spark, root, "orders", hot={"url": url})
    assert sorted(int(bytes(data)) for data in column(both)) == list(range(300))
    assert column(read_hot(spark, url, "orders", **archive_options(root))) == numbers(300)
    assert Replay(ArchiveOrigin(root, "orders", Span()), "again", {"url": url}).run().added == 200
    assert verify(root.uri, rows=True, storage_options=options).is_sound


@pytest.mark.slow
@pytest.mark.parametrize("line", ["ready", "step written", "step placed", "step committed", "step vacuum"])
def test_a_compaction_that_is_killed_leaves_every_row_once(
    line: str, root: Location, stream: Stream, tmp_path: Path
) -> None:
    for at in range(0, 60, 10):
        archive(opened(root), stream, at, at + 10)
    words = [sys.executable, "-c", COMPACT, root.uri, json.dumps(dict(root.options))]
    with Process(words, tmp_path, {"PYTHONPATH": PYTHONPATH}) as process:
        process.wait_for_line(line)
        process.kill()
    assert archived(root, stream.name) == stream.entries
    compact(root, grace_s=0)
    assert archived(root, stream.name) == stream.entries
    [found] = status(root)
    assert found.files == 1


@pytest.mark.slow
@pytest.mark.needs_limits
@pytest.mark.parametrize("step", ["written", "placed", "committed"])
def test_a_driver_that_is_killed_leaves_nothing_out_and_nothing_twice(
    step: str,
    spark: SparkSession,
    root: Location,
    start_driver: Callable[..., Driver],
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
) -> None:
    fill(stream_redis, "orders", 3_000)
    options = dict(root.options)
    driver = start_driver(KILLED, root.uri, json.dumps(options), stream_server.url, step)
    driver.wait_for_line(f"reached {step}")
    driver.kill()
    assert len(archived(root)) == (2_000 if step == "committed" else 1_000)
    run = ArchiveRun(root.uri, "orders", {"url": stream_server.url}, storage_options=options)
    finished(run.start(spark, once=True))
    assert [fields["data"] for _, fields in archived(root)] == [b"%d" % n for n in range(3_000)]


@pytest.fixture
def command(s3: S3Server, root: Location, tmp_path: Path) -> Callable[..., Process]:
    """Starts a command that finds the store by the variables which the documentation names."""
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "PYTHONPATH": PYTHONPATH, **fast_start(),
    }  # fmt: skip

    def start(*words: object) -> Process:
        return Process([sys.executable, "-m", "penstock", *map(str, words), "--archive", root.uri], tmp_path, env)

    return start


def test_the_commands_take_its_address_and_find_its_keys_in_the_environment(
    command: Callable[..., Process], root: Location, stream: Stream, stream_server: EmbeddedServer
) -> None:
    for at in range(0, 60, 20):
        archive(opened(root), stream, at, at + 20)
    [told] = [json.loads(line) for line in command("archive", "status", "--json").end()]
    assert (told["stream"], told["rows"], told["files"]) == (stream.name, 60, 3)
    assert command("archive", "compact").end()[-1].startswith("merged 3 files into 1; ")
    assert command("archive", "verify", "--rows").end()[-1].startswith("sound: ")
    into = ("--stream", stream.name, "--into", "again", "--url", stream_server.url)
    assert command("replay", *into).end()[-1] == "wrote 60 messages; 0 were already there"


@pytest.mark.slow
def test_a_report_and_a_reprocessing_read_it(
    command: Callable[..., Process],
    java: Path,
    root: Location,
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
    tmp_path: Path,
) -> None:
    stream = Stream()
    for n in range(30):
        payload = json.dumps({"n": n, "place": str(tmp_path)}).encode()
        stream.entries.append((f"{START_MS + n}-0", {"data": payload}))
    archive(opened(root), stream, 0, 30)
    times, master = ("--stream", "orders", "--since", START_MS, "--until", START_MS + 30), ("--master", "local[1]")
    page, results = tmp_path / "page.html", tmp_path / "results"
    told = command("report", *times, "--url", stream_server.url, "--output", page, *master).end()
    assert told[-1] == f"{page}: 30 messages, 0 dead letters"
    assert "Archived entries by day" in page.read_text()
    words = ("--handler", "tests.spark.reprocess.handlers:doubled", "--results", results)
    told = command("reprocess", *times, *words, *master).end()
    assert any(line.startswith("done 27, failed 3") for line in told), told
    with FSBackend(results) as backend:
        assert len(list(backend.iter())) == 30


@pytest.mark.slow
@pytest.mark.needs_limits
def test_of_two_runs_that_were_started_by_hand_one_ends_and_every_entry_is_archived_once(
    command: Callable[..., Process],
    java: Path,
    root: Location,
    stream_server: EmbeddedServer,
    stream_redis: redis.Redis,
) -> None:
    fill(stream_redis, "orders", 100)
    words = ("archive", "run", "--stream", "orders", "--url", stream_server.url, "--continuous", "--every", "1s")
    with command(*words, "--master", "local[1]") as first:
        first.wait_for_line("^batch 0: 100 entries")
        with command(*words, "--master", "local[1]") as second:
            second.wait_for_line("^starting Spark")
            runs = [first, second]

            def add(rows: range) -> None:
                fill(stream_redis, "orders", len(rows), first=rows.start)
                eventually(
                    lambda: len(archived(root)) == rows.stop or not all(run.is_alive() for run in runs), PATIENCE_S
                )

            added = 100
            while all(run.is_alive() for run in runs):  # the second one is still starting, at first
                add(range(added, added + 50))
                added += 50
            over, left = sorted(runs, key=Process.is_alive)
            assert over.code() == 1
            over.wait_for_line("another run has archived to")
            fill(stream_redis, "orders", 50, first=added)
            eventually(lambda: len(archived(root)) == added + 50, PATIENCE_S)
            os.kill(left.pid, signal.SIGTERM)
            left.end()
    assert [fields["data"] for _, fields in archived(root)] == [b"%d" % n for n in range(added + 50)]
    assert verify(root, rows=True).is_sound
