"""Messages come again, each once, and know where they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis

from penstock.errors import ConfigurationError, StreamMissing
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import ArchiveDamaged, compact
from penstock.spark.replay import ArchiveOrigin, DeadLetterOrigin, FileOrigin, Replay, Replayed, Span, Where
from penstock.spark.replay import run as replay_run
from penstock.spark.runtime.link import Link
from tests.spark.archive.streams import START_MS, Stream, archive, flip_a_bit_of_the_payload, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stream() -> Stream:
    made = Stream()
    made.add(100)
    return made


@pytest.fixture
def root(tmp_path: Path, stream: Stream) -> Path:
    archiver = opened(tmp_path / "cold")
    for start in range(0, 100, 20):
        archive(archiver, stream, start, start + 20)
    return tmp_path / "cold"


def made(server: EmbeddedServer, origin: Any, into: str = "again", name: str = "test", **settings: Any) -> Replay:
    return Replay(origin, into, {"url": server.url}, name=name, **settings)


def arrived(client: redis.Redis, stream: str = "again") -> list[dict[str, Any]]:
    found = []
    for _, fields in client.xrange(stream):
        message = {name.decode(): value.decode() for name, value in fields.items()}
        found.append(message | {"headers": json.loads(message["headers"])})
    return found


def test_a_compaction_may_take_files_away_meanwhile_and_damage_is_told(root: Path, stream: Stream) -> None:
    def ids_of(batch: pa.RecordBatch) -> list[str]:
        return batch.column("id").to_pylist()

    origin = ArchiveOrigin(root, "orders", Span())
    rows = origin.rows(None)
    seen = ids_of(next(rows))
    stream.add(20)
    archive(opened(root), stream, 100, 120)
    compact(root, grace_s=0)
    seen += [entry_id for batch in rows for entry_id in ids_of(batch)]
    assert seen == [entry_id for entry_id, _ in stream.entries[:100]]  # what came later is not meant
    [file] = root.glob("stream=*/day=*/*")
    content = file.read_bytes()
    for damage, why in ((file.unlink, "is missing"), (lambda: file.write_bytes(content[:-50]), "bytes instead of")):
        damage()
        with pytest.raises(ArchiveDamaged, match=why):
            list(ArchiveOrigin(root, "orders", Span()).rows(None))


def test_a_selection_without_an_end_grows_with_the_archive_and_one_with_an_end_does_not(
    root: Path, stream: Stream, stream_server: EmbeddedServer
) -> None:
    def run(name: str, span: Span) -> Replayed:
        return made(stream_server, ArchiveOrigin(root, "orders", span), into=name, name=name).run()

    ended = Span(high=START_MS + 100)
    assert run("open", Span()) == run("ended", ended) == Replayed(added=100, repeated=0)
    stream.add(20)
    archive(opened(root), stream, 100, 120)
    assert run("open", Span()) == Replayed(added=20, repeated=100)
    assert run("ended", ended) == Replayed(added=0, repeated=100)


def test_nothing_of_a_file_with_a_flipped_bit_is_replayed(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    origin = ArchiveOrigin(root, "orders", Span())
    _replay_in_spite_of_a_flipped_bit(made(stream_server, origin), root, stream_redis)


def test_nothing_of_a_file_with_a_flipped_bit_is_filtered(
    spark: SparkSession, root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    origin = ArchiveOrigin(root, "orders", Span())
    where = Where("ms > 0", origin.schema, lambda: spark)
    _replay_in_spite_of_a_flipped_bit(made(stream_server, origin, where=where), root, stream_redis)


def _replay_in_spite_of_a_flipped_bit(replay: Replay, root: Path, stream_redis: redis.Redis) -> None:
    files = sorted(root.glob("stream=*/day=*/*"))
    flip_a_bit_of_the_payload(files[2])
    with pytest.raises(ArchiveDamaged, match=rf"{files[2].name} is damaged: its checksum does not match"):
        replay.count()
    assert not stream_redis.exists("again")
    with pytest.raises(ArchiveDamaged, match=files[2].name):  # without counting first
        replay.run()
    assert stream_redis.xlen("again") in (0, 40)  # what lies before that file
    flip_a_bit_of_the_payload(files[2])  # and back
    replay.run()
    assert stream_redis.xlen("again") == 100


class Interrupted(Exception):
    pass


class Breaking:
    """An origin that fails after some batches, as a killed process would."""

    def __init__(self, origin: ArchiveOrigin, batches: int) -> None:
        self._origin, self._batches = origin, batches
        self.name, self.schema = origin.name, origin.schema

    def rows(self, where: Where | None) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(self._origin.rows(where)):
            if number == self._batches:
                raise Interrupted
            yield batch


def test_entries_come_again_in_their_order_and_know_their_origin(
    root: Path, stream: Stream, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    replay = made(stream_server, ArchiveOrigin(root, "orders", Span(START_MS + 10, START_MS + 70)))
    assert replay.count().wanted == 60
    assert not stream_redis.exists("again")  # counting writes nothing
    assert replay.run() == Replayed(60, 0)
    messages = arrived(stream_redis)
    assert [message["data"] for message in messages] == [str(n) for n in range(10, 70)]
    assert messages[1]["n"] == "x"  # a field of the user's own
    assert messages[0]["headers"] == {"replay_of": f"orders/{stream.entries[10][0]}", "replay": "test"}
    assert len({message["message_id"] for message in messages}) == 60


def test_a_replay_that_is_repeated_or_was_interrupted_adds_each_message_once(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_run, "_CHUNK", 7)  # so that something is written before the end
    origin = ArchiveOrigin(root, "orders", Span())
    with pytest.raises(Interrupted):
        made(stream_server, Breaking(origin, 3)).run()
    first = made(stream_server, origin)
    done = first.done()
    assert 0 < done < 100
    assert stream_redis.xlen("again") == done
    compact(root)  # meanwhile; it changes no row and no order
    assert made(stream_server, ArchiveOrigin(root, "orders", Span())).run() == Replayed(100 - done, done)
    assert made(stream_server, origin).run() == Replayed(0, 100)
    assert [message["data"] for message in arrived(stream_redis)] == [str(n) for n in range(100)]
    with pytest.raises(ConfigurationError, match="belongs to another replay"):
        made(stream_server, ArchiveOrigin(root, "orders", Span(START_MS + 5))).run()
    assert stream_redis.xlen("again") == 100


def test_what_a_replay_wrote_is_not_replayed_into_the_same_stream(
    tmp_path: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    file = tmp_path / "messages.jsonl"
    lines = [
        {"stream": "a", "id": "1-0", "data": "fresh"},
        {"stream": "again", "id": "2-0", "data": "of a replay", "headers": {"replay_of": "a/0-5"}},
        {"stream": "b", "id": "3-0", "data": "back to where it was", "headers": {"replay_of": "again/0-6"}},
        {"stream": "b", "id": "4-0", "data": "on to a third", "headers": {"replay_of": "a/0-7", "mine": "x"}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    replay = made(stream_server, FileOrigin(file, Span()))
    counts = replay.count()
    assert (counts.wanted, counts.looping) == (2, 2)
    assert replay.run().added == 2
    assert [(m["data"], m["headers"]) for m in arrived(stream_redis)] == [
        ("fresh", {"replay_of": "a/1-0", "replay": "test"}),
        ("on to a third", {"replay_of": "a/0-7", "mine": "x", "replay": "test"}),
    ]


def test_dead_letters_go_back_without_the_marks_of_their_death(
    stream_server: EmbeddedServer, stream_redis: redis.Redis, spark: SparkSession, root: Path
) -> None:
    for n in range(10):
        stream_redis.xadd(
            "orders_dlq",
            {"data": f"{n}", "key": "k", "expires_at": "1", "dlq_reason": "failed" if n % 2 else "expired",
             "dlq_source": "orders", "dlq_id": f"{n}-0"},
        )  # fmt: skip
    stream_redis.xadd("orders_dlq", {"data": "0", "dlq_reason": "failed", "dlq_id": "1-0"})  # not made by Penstock
    link = Link(stream_server.url)
    origin = DeadLetterOrigin(link, "orders", Span())
    where = Where("reason = 'failed' and cast(data as string) > '3'", origin.schema, lambda: spark)
    replay = made(stream_server, origin, "orders", where=where)
    assert replay.count().wanted == 3
    assert made(stream_server, origin, "orders").count().wanted == 11
    assert replay.run().added == 3
    messages = arrived(stream_redis, "orders")
    assert [m["headers"]["replay_of"] for m in messages] == ["orders/5-0", "orders/7-0", "orders/9-0"]
    assert {*messages[0]} == {"data", "key", "headers", "message_id"}
    stream_redis.set("text", "x")
    with pytest.raises(ConfigurationError, match="'text' is a string in Redis"):
        made(stream_server, origin, "text").done()
    with pytest.raises(StreamMissing, match="stream 'other' has no dead letters"):
        DeadLetterOrigin(link, "other", Span())

    # The same condition on Spark for the archive, whose rows are sorted again.
    cold = ArchiveOrigin(root, "orders", Span(None, START_MS + 50))
    where = Where("cast(cast(data as string) as int) % 10 = 3", cold.schema, lambda: spark)
    assert made(stream_server, cold, "tens", where=where).run().added == 5
    assert [m["data"] for m in arrived(stream_redis, "tens")] == ["3", "13", "23", "33", "43"]
    for condition in ("customer = 1", "data ==== 1", "1 + 1"):
        with pytest.raises(ConfigurationError, match="--where"):
            Where(condition, cold.schema, lambda: spark)


def test_the_rate_is_kept(
    root: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(replay_run.time, "monotonic", lambda: now_s[0])
    seen: list[tuple[int, float]] = []
    origin = ArchiveOrigin(root, "orders", Span())

    def paced() -> Replay:
        replay = made(stream_server, origin, rate=20)
        monkeypatch.setattr(replay._stopped, "wait", lambda s: now_s.__setitem__(0, now_s[0] + s))
        return replay

    paced().run(lambda sent: seen.append((sent, now_s[0])))
    assert now_s[0] == pytest.approx(5.0)
    assert all(at_s >= sent / 20 - 1e-9 for sent, at_s in seen)
    assert stream_redis.xlen("again") == 100
    paced().run()
    assert now_s[0] == pytest.approx(5.0)  # what is there already is not waited for
    with pytest.raises(ConfigurationError, match="--rate"):
        made(stream_server, origin, rate=0)
    for rate in (float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="--rate"):
            made(stream_server, origin, rate=rate)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "line 2"),
        ("[1]", "must be a JSON object"),
        ('{"data": 1, "dota": 2}', "unknown name 'dota'"),
        ("{}", "set either data or data_base64"),
        ('{"data": "x", "id": "noon"}', "line 2"),
        ('{"data_base64": "%%"}', "line 2"),
        ('{"data": "x", "key": 5}', "key must be a string"),
        ('{"data": "x", "id": "99999999999999999999-0"}', "is too large"),
        ('{"data": "x", "key": "\\ud800"}', "line 2: it contains a lone surrogate"),
        ('{"data": "x", "headers": ["a"]}', "headers must be an object of strings"),
        ('{"data": "x", "fields": {"a": null}}', "fields must be an object of strings"),
        ('{"data": 1e999}', "line 2"),
    ],
)
def test_a_line_that_is_no_message_is_told_by_its_number(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{{"data": {{"a": 1}}}}\n{line}\n')
    with pytest.raises(ConfigurationError, match=why):
        list(FileOrigin(file, Span()).rows(None))


def test_lines_without_ids_are_at_no_time(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text('{"data_base64": "AAE="}\n\n{"data": {"a": 1}}\n')
    [batch] = FileOrigin(file, Span()).rows(None)
    assert batch.column("data").to_pylist() == [b"\0\1", b'{"a":1}']
    with pytest.raises(ConfigurationError, match="no time"):
        list(FileOrigin(file, Span(5)).rows(None))
