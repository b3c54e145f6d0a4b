"""Commands on Spark open and protect payloads with the keys that the settings name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.protection import Protection, payload_of
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import read
from penstock.spark.report import ReportQuery, Target, Window
from penstock.sync.results import FSBackend
from tests.spark.archive.streams import START_MS, Stream, archive, opened
from tests.spark.report.pages import Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDLER = "tests.spark.reprocess.handlers:doubled"


@pytest.fixture(params=["sign", "encrypt"])
def keys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protection:
    file = tmp_path / "keys.toml"
    file.write_text(f'mode = "{request.param}"\n[keys]\na = "{base64.b64encode(bytes(32)).decode()}"\n')
    monkeypatch.setenv("PENSTOCK__TASK_QUEUE__PROTECTION_FILE", str(file))
    return Protection.from_file(file)


@pytest.fixture
def options(keys: Protection, stream_server: EmbeddedServer, tmp_path: Path) -> dict[str, str]:
    return {"url": stream_server.url, "protectionFile": str(tmp_path / "keys.toml")}


def order(keys: Protection, place: Path, n: int) -> dict[str, bytes]:
    """Returns the fields of an order; the first one is a forgery."""
    raw = json.dumps({"n": n, "kind": "pay", "place": str(place)}).encode()
    return {"data": keys.protect(raw, "orders", f"m{n}") if n else raw, "message_id": b"m%d" % n}


@pytest.fixture
def cold(keys: Protection, tmp_path: Path) -> Path:
    """An archive of five orders."""
    stream = Stream(entries=[(f"{START_MS + n}-0", order(keys, tmp_path, n)) for n in range(5)])
    archive(opened(tmp_path / "cold"), stream, 0, 5)
    return tmp_path / "cold"


@pytest.fixture
def dead(keys: Protection, stream_redis: redis.Redis, tmp_path: Path) -> None:
    """The same orders as dead letters."""
    for n in range(5):
        told = {"dlq_reason": "fatal", "dlq_source": "orders", "dlq_id": f"{START_MS + n}-0"}
        stream_redis.xadd("orders_dlq", {**order(keys, tmp_path, n), **told}, id=f"{START_MS + n}-1")


def call(server: EmbeddedServer, *words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in (*words, "--stream", "orders", "--url", server.url)])
    assert result.exit_code == 0, result.output
    return result.output


def arrived(client: redis.Redis, keys: Protection) -> list[int]:
    """Returns the numbers of the orders in the stream `again`, as its consumers read them."""
    entries = [{name.decode(): value for name, value in fields.items()} for _, fields in client.xrange("again")]
    return [json.loads(payload_of(fields, "again", keys) or b"")["n"] for fields in entries]


def test_what_is_replayed_is_protected_for_its_new_stream(
    keys: Protection, cold: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    words = ("replay", "--archive", cold, "--into", "again")
    output = call(stream_server, *words)
    assert "1 skipped: they have no payload, or none that is authentic" in output
    assert arrived(stream_redis, keys) == [1, 2, 3, 4]
    assert "wrote 0 messages; 4 were already there" in call(stream_server, *words)


@pytest.mark.usefixtures("dead")
def test_replayed_dead_letters_are_opened_for_their_own_stream(
    keys: Protection, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    call(stream_server, "replay", "--dead-letters", "--into", "again")
    assert arrived(stream_redis, keys) == [1, 2, 3, 4]


def test_messages_of_a_file_are_protected_also_those_that_are_closed_in_it(
    keys: Protection, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    line = {
        "data_base64": base64.b64encode(order(keys, tmp_path, 2)["data"]).decode(),
        "stream": "orders",
        "message_id": "m2",
    }
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps({"data": {"n": 1}, "stream": "orders"}) + "\n" + json.dumps(line))
    call(stream_server, "replay", "--file", file, "--into", "again")
    assert arrived(stream_redis, keys) == [1, 2]


def test_a_condition_of_a_replay_sees_opened_payloads(
    spark: SparkSession, keys: Protection, cold: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    where = "get_json_object(cast(data as string), '$.n') > 2"
    call(stream_server, "replay", "--archive", cold, "--into", "again", "--where", where)
    assert arrived(stream_redis, keys) == [3, 4]


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize("kept", ["dead letters", "an archive"])
def test_handlers_get_opened_payloads_again_and_no_forgery(
    kept: str, spark: SparkSession, keys: Protection, cold: Path, stream_server: EmbeddedServer, tmp_path: Path
) -> None:
    words = ["--dead-letters"] if kept == "dead letters" else ["--archive", str(cold)]
    where = "get_json_object(cast(data as string), '$.n') > 1 or refused is not null"
    words += ["--handler", HANDLER, "--results", str(tmp_path / "results"), "--where", where]
    output = call(stream_server, "reprocess", *words)
    assert "done 3, failed 1" in output
    assert "NotAuthentic: the payload is not protected" in output
    with FSBackend(tmp_path / "results") as backend:
        assert sorted(result.data["twice"] for result in backend.iter() if result.status == "ok") == [4, 6, 8]


@pytest.mark.usefixtures("dead")
def test_a_report_knows_the_kinds_of_protected_messages_and_their_sizes_in_redis(
    spark: SparkSession, keys: Protection, options: dict[str, str], stream_redis: redis.Redis, tmp_path: Path
) -> None:
    orders = [order(keys, tmp_path, n) for n in range(5)]
    for n, fields in enumerate(orders):
        stream_redis.xadd("orders", fields, id=f"{START_MS + n}-0")
    figures = ReportQuery(spark, Target("orders", options), Window(START_MS, START_MS + 1_000)).figures()
    assert figures.messages.counts("kind") == {"pay": 4, None: 1}
    assert figures.messages.whole.bytes == sum(len(fields["data"]) for fields in orders)
    assert figures.failures.by_kind == {"pay": 4, None: 1}


def test_the_archive_and_redis_are_read_with_the_same_keys(
    spark: SparkSession, keys: Protection, cold: Path, options: dict[str, str], stream_redis: redis.Redis,
    tmp_path: Path,
) -> None:  # fmt: skip
    stream_redis.xadd("orders", order(keys, tmp_path, 5), id=f"{START_MS + 5}-0")
    rows = read(spark, cold, "orders", hot=options, fail_on_data_loss=False).orderBy("ms").collect()
    assert [row["data"] and json.loads(row["data"])["n"] for row in rows] == [None, 1, 2, 3, 4, 5]


def test_the_command_reports_on_the_archive_and_redis(
    spark: SparkSession, keys: Protection, cold: Path, stream_server: EmbeddedServer, stream_redis: redis.Redis,
    tmp_path: Path,
) -> None:  # fmt: skip
    for n in (5, 6):
        stream_redis.xadd("orders", order(keys, tmp_path, n), id=f"{START_MS + n}-0")
    page = tmp_path / "page.html"
    times = ("--since", START_MS, "--until", START_MS + 1_000)
    call(stream_server, "report", "--archive", cold, *times, "--output", page)
    assert Page(page.read_text()).row("pay")[1] == "6"
