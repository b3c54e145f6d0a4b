"""`penstock report`, as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from tests.helpers.json_names import check
from tests.spark.archive.streams import Stream, archive, opened
from tests.spark.report.pages import Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def call(server: EmbeddedServer, *words: object) -> Result:
    return CliRunner().invoke(app, ["report", "--url", server.url, *map(str, words)])


def test_an_empty_stream_has_a_page_too_and_an_old_page_is_replaced(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    stream_redis.xadd("orders", {"data": "1"})
    stream_redis.xtrim("orders", maxlen=0, approximate=False)
    out = tmp_path / "page.html"
    out.write_text("old")
    out.chmod(0o644)
    result = call(stream_server, "--stream", "orders", "--since", "2h", "--output", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out}: 0 messages, 0 dead letters\n"
    page = Page(out.read_text())
    assert page.tiles["Messages"] == "0"
    assert "Stream orders is now empty: 1 entries were trimmed or deleted" in page.text
    assert list(tmp_path.iterdir()) == [out]
    assert out.stat().st_mode & 0o777 == 0o644


def test_what_is_left_of_a_stream_are_dead_letters_with_bytes_that_are_no_text(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    stream_redis.xadd(
        "ghosts_dlq", {"data": b"\xff", "kind": b"\xff\xfe", "dlq_reason": "fatal", "dlq_error_text": b"\xfd"}
    )
    archive(opened(tmp_path / "cold"), orders(), 0, 5)
    out = tmp_path / "page.html"
    result = call(stream_server, "--stream", "ghosts", "--archive", tmp_path / "cold", "--output", out, "--json")
    told = json.loads(result.stdout)
    assert told == {"file": str(out), "messages": 0, "dead_letters": 1}
    check("report", [told])
    assert out.stat().st_mode & 0o077 == 0, "it shows payloads and errors"
    page = Page(out.read_text())
    assert page.row("1")[1:3] == ["fatal", "\ufffd"]
    assert "penstock dlq show --queue ghosts_dlq" in page.text
    assert f"The archive {tmp_path}/cold does not have this stream." in page.text


def orders() -> Stream:
    stream = Stream()
    stream.add(5)
    return stream


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--stream", "nobody"), "stream 'nobody' does not exist"),
        (("--stream", "jobs.tasks"), "stream 'jobs.tasks' does not exist"),
        (("--stream", " "), "--stream"),
        (("--stream", "orders", "--since", "2199-01-01"), "is in the future"),
        (("--stream", "orders", "--since", "1h", "--until", "2h"), "must be before --until"),
        (("--stream", "orders", "--output", "{place}"), "is a folder"),
        (("--stream", "orders", "--output", "{place}/none/page.html"), "/none does not exist"),
        (("--stream", "orders", "--output", "/dev/null/page.html"), "folder /dev/null does not exist"),
        (("--stream", "nobody", "--archive", "{place}"), "there is no archive"),
        (("--stream", "orders", "--archive", "{place}"), "there is no archive"),
        (("--stream", "orders", "--output", "/proc/page.html"), "--output /proc/page.html cannot be written"),
        (("--stream", "orders", "--master", "lokal"), "--master 'lokal' must be"),
        (("--stream", "orders", "--dashboard", "javascript:alert(1)"), "must be the address of a dashboard"),
        (("--stream", "orders", "--output", "a" * 300), "cannot be written: File name too long"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: tuple[str, ...], why: str, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stream_redis.xadd("orders", {"data": "1"})
    monkeypatch.chdir(tmp_path)
    result = call(stream_server, *(word.format(place=tmp_path) for word in words))
    assert result.exit_code == (3 if why.startswith(("stream '", "there is no archive")) else 2), result.output
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    assert why in line
    assert not list(tmp_path.iterdir())
