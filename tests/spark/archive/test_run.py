"""The query that archives, on real Spark: what it copies, what retention learns of it, and what a kill does to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import StreamingQueryException

from penstock import ids
from penstock.errors import ConfigurationError, StreamMissing
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveDamaged, ArchiveRun, status, verify
from penstock.spark.archive.run import GROUP, copy
from penstock.spark.archive.table import load_state
from penstock.spark.source.offsets import BatchRange, Offsets, Position
from penstock.spark.source.options import SourceOptions
from penstock.sync import ConsumerGroup, StreamClient
from tests.spark.archive.streams import Stream, archive, archived, opened
from tests.spark.driver import Driver
from tests.spark.end_to_end.queries import entry_id, fill, finished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., None]


@pytest.fixture
def run(spark: SparkSession, stream_server: EmbeddedServer, tmp_path: Path) -> Run:
    """Archives all that is there: `run("orders", **settings)`."""

    def run(streams: str = "orders", **settings: Any) -> None:
        options = {"url": stream_server.url, "minPartitions": "2"}
        given = {"options": options, **settings}
        finished(ArchiveRun(tmp_path / "cold", streams, **given).start(spark, once=True))

    return run


def entries(client: redis.Redis, stream: str) -> list[tuple[str, dict[str, bytes]]]:
    return [(i.decode(), {k.decode(): v for k, v in fields.items()}) for i, fields in client.xrange(stream)]


def group_at(client: redis.Redis, stream: str) -> str:
    return {info["name"]: info["last-delivered-id"] for info in client.xinfo_groups(stream)}[GROUP.encode()].decode()


@pytest.mark.needs_limits
def test_streams_are_archived_as_they_are_and_retention_trims_what_is_archived_and_nothing_else(
    run: Run, stream_redis: redis.Redis, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 500)
    stream_redis.xadd("odd", {"data": b"\xff\x00", "headers": b'{"a":"b"}', "x": b"\xfe"})
    stream_redis.xadd("odd", {"only": "other fields"})
    before = {name: entries(stream_redis, name) for name in ("orders", "odd")}
    run("orders,odd", max_batch_rows=200)
    assert {name: archived(tmp_path / "cold", name) for name in before} == before
    assert group_at(stream_redis, "orders") == entry_id(499)

    fill(stream_redis, "orders", 100, first=500)
    with StreamClient.from_url(stream_server.url) as client:
        assert ConsumerGroup(client, "orders", GROUP).trim(keep=0) == 500
    run("orders,odd")
    assert [fields["data"] for _, fields in archived(tmp_path / "cold")] == [b"%d" % n for n in range(600)]
    assert len(archived(tmp_path / "cold", "odd")) == 2


@pytest.mark.needs_limits
def test_without_its_checkpoint_it_continues_where_the_table_ends_and_notices_a_gap(
    run: Run, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    fill(stream_redis, "orders", 100)
    run()
    shutil.rmtree(tmp_path / "cold" / "_checkpoint")
    fill(stream_redis, "orders", 100, first=100)
    stream_redis.xtrim("orders", minid=entry_id(100), approximate=False)  # what is archived, exactly
    run()
    assert [fields["data"] for _, fields in archived(tmp_path / "cold")] == [b"%d" % n for n in range(200)]
    shutil.rmtree(tmp_path / "cold" / "_checkpoint")
    fill(stream_redis, "orders", 100, first=200)
    stream_redis.xtrim("orders", minid=entry_id(230), approximate=False)
    with pytest.raises(StreamingQueryException, match="30 entries"):
        run()
    run(fail_on_data_loss=False)
    ranges = load_state(tmp_path / "cold").ranges["orders"]
    assert [(each.rows, each.lost) for each in ranges] == [(200, 0), (70, 30)]
    assert len(archived(tmp_path / "cold")) == 270


def test_bad_input_is_refused_and_writes_nothing(
    spark: SparkSession, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    options = {"url": stream_server.url}
    file = tmp_path / "file"
    file.write_text("x")
    for root, given, why in (
        (file / "cold", options, "is not a directory"),
        (tmp_path / "cold", {}, "url is missing"),
        (tmp_path / "cold", {**options, "nonsense": "1"}, "unknown option"),
        (tmp_path / "cold", options, "stream 'orders' does not exist"),
    ):
        with pytest.raises((ConfigurationError, StreamMissing), match=why):
            ArchiveRun(root, "orders", given).start(spark, once=True)
    assert not (tmp_path / "cold").exists()


@dataclass
class Cluster:
    """A SparkContext with four cores, of which nothing but the tasks is real."""

    defaultParallelism: int = 4  # noqa: N815 - Spark's name
    tasks: list[int] = field(default_factory=list)

    def parallelize(self, shares: Sequence[Any], count: int) -> Any:
        self.tasks.append(count)
        made = lambda copy: [each for share in shares for each in copy(share)]  # noqa: E731
        return SimpleNamespace(flatMap=lambda copy: SimpleNamespace(collect=lambda: made(copy)))


def test_a_long_batch_is_copied_by_all_cores_and_a_short_one_by_one_task(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    options, cluster = SourceOptions.parse({"url": stream_server.url, "streams": "orders"}), Cluster()
    with stream_redis.pipeline(transaction=False) as pipe:
        fill(pipe, "orders", 61_000)
        pipe.execute()
    archiver, start = opened(tmp_path / "cold"), Position(ids.ZERO, 0)
    for count in (1_000, 61_000):
        end = Position(entry_id(count - 1), count)
        batch = Offsets({"orders": BatchRange(end, start)})
        archiver.archive(batch, lambda task: copy(cluster, options, task))  # type: ignore[arg-type]
        start = end
    assert cluster.tasks == [1, 4]
    assert [fields["data"] for _, fields in archived(tmp_path / "cold")] == [b"%d" % n for n in range(61_000)]
    assert verify(tmp_path / "cold", rows=True).is_sound


def test_what_is_trimmed_between_the_plan_and_the_read_is_recorded_as_lost(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    given = {"url": stream_server.url, "streams": "orders", "minPartitions": "4", "failOnDataLoss": "false"}
    options, cluster = SourceOptions.parse(given), Cluster()
    fill(stream_redis, "orders", 400)
    archiver = opened(tmp_path / "cold", fail_on_data_loss=False)

    def trimming(task: Any, upto: int) -> Any:
        stream_redis.xtrim("orders", minid=entry_id(upto), approximate=False)
        return copy(cluster, options, task)  # type: ignore[arg-type]

    for start, end, trimmed in ((0, 200, 0), (200, 400, 330)):
        batch = BatchRange(
            Position(entry_id(end - 1), end), Position(entry_id(start - 1) if start else ids.ZERO, start)
        )
        archiver.archive(Offsets({"orders": batch}), lambda task, upto=trimmed: trimming(task, upto))
    assert [(each.rows, each.lost) for each in load_state(tmp_path / "cold").ranges["orders"]] == [(200, 0), (70, 130)]
    [found] = status(tmp_path / "cold")
    assert (found.rows, found.lost) == (270, 130)
    report = verify(tmp_path / "cold", rows=True)
    assert report.is_sound, report.findings
    assert report.known_losses == (
        f"stream 'orders': 130 entries before {ids.before(entry_id(330))} were lost before they could be archived",
    )


@pytest.mark.parametrize(
    "text", ["", "v1\n{}", "v1\n{}\n{", "v1\n{}\n[]", 'v1\n{}\n{"v": 1, "s": 1}', "v1\n{}\n\0\xff"]
)
def test_a_checkpoint_that_cannot_be_read_is_reported_with_the_remedy(
    stream_server: EmbeddedServer, tmp_path: Path, text: str
) -> None:
    stream = Stream()
    stream.add(10)
    archive(opened(tmp_path / "cold"), stream, 0, 10)
    checkpoint = tmp_path / "cold" / "_checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        (checkpoint / folder / "3").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArchiveDamaged, match=rf"batch 3 .*\. Remove {checkpoint}: the run continues where the table"):
        ArchiveRun(tmp_path / "cold", "orders", {"url": stream_server.url}).check()


KILLED = """
import json, signal, sys
from penstock.spark import session
from penstock.spark.archive import ArchiveRun

root, options, url, at = sys.argv[1:]
steps = []

def step(name):
    steps.append(name)
    if name == at and steps.count(name) == 2:
        print("reached", name, flush=True)
        signal.pause()

conf = {"spark.driver.memory": "512m", "spark.log.level": "ERROR"}
spark = session("killed", "local[2]", short=True, conf=conf)
run = ArchiveRun(root, "orders", {"url": url}, max_batch_rows=1_000, storage_options=json.loads(options), step=step)
run.start(spark, once=True).awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.needs_limits
def test_a_driver_that_is_killed_between_files_and_commit_leaves_nothing_out_and_nothing_twice(
    run: Run,
    start_driver: Callable[..., Driver],
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    tmp_path: Path,
) -> None:
    fill(stream_redis, "orders", 3_000)
    driver = start_driver(KILLED, str(tmp_path / "cold"), "{}", stream_server.url, "placed")
    driver.wait_for_line("reached placed")
    driver.kill()
    assert len(archived(tmp_path / "cold")) == 1_000
    assert group_at(stream_redis, "orders") == entry_id(999)  # retention keeps the rest
    run()
    assert archived(tmp_path / "cold") == entries(stream_redis, "orders")
