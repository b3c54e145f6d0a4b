"""The figures of a report are those that plain Python computes from the same messages."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.report import ReportQuery, Target, Window, render
from penstock.spark.report.figures import SHARES, Percentiles
from penstock.spark.report.query import aggregate
from penstock.spark.runtime.errors import FINGERPRINT_LENGTH, PATTERNS
from penstock.task import Result, encode
from tests.spark.archive.streams import START_MS, Stream, archive, opened
from tests.spark.report.pages import Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
WINDOW = Window(START_MS + HOUR_MS, START_MS + 3 * HOUR_MS)
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onload='x'"
TEXTS = [
    "order 7 has no price", "order 12.5 has no price", "can't find user 'ann'", 'can\'t find user "bob"',
    "job 6f1c2a9e-0000-4000-8000-00000000abcd at 0x7fe2 timed\nout after 3,000 ms", ATTACK, "", "x" * 500,
]  # fmt: skip


def message_id(ms: int, number: int) -> str:
    """Returns an id as Penstock makes them, of a time."""
    return f"{ms:012x}7{number % 4096:03x}8{number:015x}"


def normalised(text: str) -> str:
    for pattern, sign in PATTERNS:
        text = re.sub(pattern, sign, text, flags=re.ASCII)
    return text.strip(" ")[:FINGERPRINT_LENGTH]


def percentiles(values: Iterable[int | None]) -> Percentiles:
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles()
    return Percentiles(len(known), tuple(known[max(0, math.ceil(share * len(known)) - 1)] for share in SHARES))


class Queue:
    """A task queue with random tasks, results and dead letters, inside and outside of the window."""

    def __init__(self, client: redis.Redis, chance: random.Random) -> None:
        self.messages: list[dict[str, Any]] = []
        self.results: list[Result] = []
        self.dead: list[dict[str, Any]] = []
        self._client, self._chance = client, chance
        client.sadd("{jobs}:lanes", "normal", "high")
        with client.pipeline(transaction=False) as pipe:
            for number, ms in enumerate(sorted(chance.randrange(START_MS, START_MS + 4 * HOUR_MS) for _ in range(300))):
                self._add(pipe, number, ms)
            for dead in sorted(self.dead, key=lambda letter: letter["ms"]):
                pipe.xadd("jobs.dead", dead["fields"], id=f"{dead['ms']}-*")
            for number, result in enumerate(sorted(self.results, key=lambda result: result.finished_at)):
                entry_id = f"{int(result.finished_at.timestamp() * 1000)}-{number}"
                pipe.xadd("jobs.results", {"task_id": result.task_id, "data": encode(result)}, id=entry_id)
                pipe.hset("{jobs}:done", result.task_id, entry_id)
            pipe.execute()

    def _add(self, pipe: Any, number: int, ms: int) -> None:
        chance = self._chance
        kind = chance.choice(["mail", "resize", ATTACK])
        made = ms - chance.randrange(0, 5_000) if number % 4 else None
        name = message_id(made, number) if made is not None else f"own-{number}"
        data = b"x" * chance.randrange(10_000)
        stream = chance.choice(["jobs.tasks", "jobs.tasks.high"])
        entry = {"data": data, "task_id": name, "kind": kind}
        pipe.xadd(stream, entry, id=f"{ms}-{number}")
        delay = None if made is None else ms - made
        self.messages.append(
            {"ms": ms, "kind": kind, "size": len(data), "delay": delay, "id": f"{ms}-{number}", "stream": stream}
        )
        ended = ms + chance.randrange(1, HOUR_MS)
        if number % 5 == 0:
            self._dead_letter(ended, f"{ms}-{number}", entry)
            return
        started = datetime.fromtimestamp((ended - chance.randrange(900)) / 1000, UTC) if number % 7 else None
        status, attempts = "error" if number % 11 == 0 else "ok", chance.randrange(1, 14)
        finished = datetime.fromtimestamp(ended / 1000, UTC)
        given = {"status": status, "attempts": attempts, "started_at": started, "finished_at": finished}
        self.results.append(Result(task_id=name, kind=kind, **given))

    def _dead_letter(self, ms: int, source: str, entry: dict[str, Any]) -> None:
        reason, text = self._chance.choice(["fatal", "max_deliveries"]), self._chance.choice(TEXTS)
        attempts = self._chance.randrange(1, 5)
        told = {
            "dlq_reason": reason, "dlq_error": "ValueError", "dlq_error_text": text, "dlq_id": source,
            "dlq_source": "jobs.tasks", "dlq_attempts": attempts, "dlq_time": ms,
        }  # fmt: skip
        life = ms - int(source.split("-", maxsplit=1)[0])
        letter = {"ms": ms, "reason": reason, "text": normalised(text), "attempts": str(attempts), "life": life}
        letter["source"] = source
        self.dead.append({**letter, "fields": {**entry, **told}})


def inside(ms: int) -> bool:
    return WINDOW.low <= ms < WINDOW.high


def test_figures_of_a_task_queue_are_those_that_plain_python_finds(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    queue = Queue(stream_redis, random.Random(20261115))
    stream_redis.xgroup_create("jobs.tasks", "workers", id="0")
    stream_redis.xreadgroup("workers", "ann", {"jobs.tasks": ">"}, count=7)
    target = Target("jobs.tasks", {"url": stream_server.url})
    figures = ReportQuery(spark, target, WINDOW).figures()

    messages = [message for message in queue.messages if inside(message["ms"])]
    whole = figures.messages.whole
    assert (whole.count, whole.bytes) == (len(messages), sum(message["size"] for message in messages))
    assert whole.first == percentiles(message["size"] for message in messages)
    assert whole.second == percentiles(message["delay"] for message in messages)
    width = figures.axis.width_ms
    assert figures.axis.low <= WINDOW.low < WINDOW.high <= figures.axis.high
    assert {group.name: group.count for group in figures.messages.of("bucket")} == Counter(
        message["ms"] // width * width for message in messages
    )
    biggest = sorted(messages, key=lambda message: (-message["size"], message["id"]))[:20]
    assert [(p.stream, p.id, p.bytes) for p in figures.payloads] == [(m["stream"], m["id"], m["size"]) for m in biggest]

    results = [result for result in queue.results if inside(int(result.finished_at.timestamp() * 1000))]
    check_results(figures.results, results)

    dead = [letter for letter in queue.dead if inside(letter["ms"])]
    assert figures.dead.whole.first == percentiles(letter["life"] for letter in dead)
    assert {g.name: g.count for g in figures.dead.of("attempts")} == Counter(letter["attempts"] for letter in dead)
    groups = Counter((letter["reason"], "ValueError", letter["text"]) for letter in dead)
    assert {(c.reason, c.error, c.text): c.count for c in figures.causes} == groups
    assert figures.cause_count == len(groups) < len(dead)
    check_failures(figures.failures, messages, dead)
    [group] = figures.groups
    length = stream_redis.xlen("jobs.tasks")
    assert (group.name, group.consumers, group.pending, group.lag.count) == ("workers", 1, 7, length - 7)
    check_page(render(figures, target, WINDOW, WINDOW.high), len(messages), len(dead))


def check_failures(failures: Any, messages: list[dict[str, Any]], dead: list[dict[str, Any]]) -> None:
    """Those of the window that died in it, by kind; each once, though some have died twice."""
    kinds = {message["id"]: message["kind"] for message in messages}
    expected = Counter(kinds[letter["source"]] for letter in dead if letter["source"] in kinds)
    assert 0 < sum(expected.values()) < len(dead)
    assert failures.by_kind == expected
    assert failures.count == sum(expected.values())


def check_results(family: Any, results: list[Result]) -> None:
    def took(result: Result) -> int | None:
        if result.task_id.startswith("own"):
            return None
        return round(result.finished_at.timestamp() * 1000) - int(result.task_id[:12], 16)

    def run(result: Result) -> int | None:
        return (
            None
            if result.started_at is None
            else round((result.finished_at - result.started_at).total_seconds() * 1000)
        )

    assert family.whole.count == len(results)
    assert family.whole.first == percentiles(map(took, results))
    assert family.whole.second == percentiles(map(run, results))
    attempts = Counter(str(min(result.attempts, 10)) for result in results)
    assert {group.name: group.count for group in family.of("attempts")} == attempts
    assert {group.name: group.count for group in family.of("status")} == Counter(r.status.value for r in results)
    by_kind: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_kind[result.kind].append(result)
    assert {g.name: (g.first, g.second) for g in family.of("kind")} == {
        kind: (percentiles(map(took, of)), percentiles(map(run, of))) for kind, of in by_kind.items()
    }
    slowness = [group.second.values[2] for group in family.of("kind")]
    assert slowness == sorted(slowness, reverse=True)


def check_page(text: str, messages: int, dead: int) -> None:
    """Texts of messages are text, whatever they look like."""
    page = Page(text)
    assert page.plots == 3
    assert page.tiles["Messages"] == str(messages)
    assert page.tiles["Dead letters"] == str(dead)
    assert ATTACK in page.text
    assert "alert(1)</script>" not in text
    assert "color-scheme: light dark" in text
    assert "default-src 'none'" in text


def test_two_groups_that_give_a_message_up_are_one_failure_and_kinds_are_found_in_payloads(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    payloads = [b'{"kind": "lamp", "n": 1}', b'{"n": 2}', b"[1]", b"\xff{", b'{"kind": 7', b'{"kind": "lamp"}']
    for number, data in enumerate(payloads):
        stream_redis.xadd("orders", {"data": data}, id=f"{START_MS + number * 1_000}-0")
    for number, source in enumerate([0, 0, 1]):
        told = {"data": payloads[source], "dlq_reason": "fatal", "dlq_id": f"{START_MS + source * 1_000}-0"}
        stream_redis.xadd("orders_dlq", {**told, "dlq_source": "orders"}, id=f"{START_MS + 9_000}-{number}")
    before = {"dlq_reason": "fatal", "dlq_id": f"{START_MS - 1}-0", "dlq_source": "orders"}  # published before
    stream_redis.xadd("orders_dlq", {"data": "{}", **before}, id=f"{START_MS + 9_000}-3")
    window = Window(START_MS, START_MS + 24 * HOUR_MS)
    target = Target("orders", {"url": stream_server.url})
    figures = ReportQuery(spark, target, window).figures()
    assert figures.messages.counts("kind") == {"lamp": 2, None: 4}
    assert (figures.dead.whole.count, figures.failures.count) == (4, 2)
    assert figures.failures.by_kind == {"lamp": 1, None: 1}
    assert figures.groups == ()
    assert (figures.axis.low, figures.axis.width_ms) == (START_MS // 1000 * 1000 - 1_000, 1_000)
    page = Page(render(figures, target, window, window.high, "http://desk:8080/"), "http://desk:8080")
    assert page.tiles["Failure rate"] == "33.33 % 2 of 6"
    assert page.row("lamp")[1:] == ["2", "40 B", "1", "50 %"]
    assert f"http://desk:8080/dead-letter?stream=orders_dlq&id={START_MS + 9_000}-3" in page.links


def test_an_archive_and_redis_behind_it_are_one_stream(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    """And kinds are headers there, results are unknown, and the page says so."""
    stream = Stream("orders")
    stream.add(60, every_ms=60_000)
    archive(opened(tmp_path / "cold"), stream, 0, 50)
    for entry_id, fields in stream.entries[45:]:  # archived ones were trimmed, but for some
        headers = json.dumps({"kind": "express"})
        stream_redis.xadd("orders", {**fields, "headers": headers}, id=entry_id)
    window = Window(START_MS + 10 * 60_000, START_MS + 58 * 60_000)
    target = Target("orders", {"url": stream_server.url}, tmp_path / "cold")
    figures = ReportQuery(spark, target, window).figures()
    assert figures.messages.whole.count == 48
    assert {group.name: group.count for group in figures.messages.of("kind")} == {None: 40, "express": 8}
    assert figures.results is None
    assert figures.coverage is not None
    assert [(day.date, day.rows) for day in figures.coverage.days] == [("2023-11-15", 50)]
    page = Page(render(figures, target, window, window.high))
    assert "The end-to-end latency of acknowledged messages is unknown" in page.text
    assert page.row("2023-11-15")[1] == "50"
    with pytest.raises(ConfigurationError, match="there is no archive"):
        Target("elsewhere", {"url": stream_server.url}, tmp_path / "warm").states()


def test_what_comes_back_to_the_driver_is_bounded(spark: SparkSession) -> None:
    rows = spark.range(1_000).selectExpr("cast(id as string) as kind", "id div 100 as bucket", "id as size")
    found = aggregate(rows, ("bucket", "kind"), "size", None)
    assert (found.whole.count, len(found.of("bucket")), len(found.of("kind"))) == (1_000, 10, 200)
