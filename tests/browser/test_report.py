"""Reports of little, some and much data as Chromium shows them: what is on the page is what is in the data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Page

from penstock.task import Result, encode
from penstock.units import count
from tests.browser.conftest import PATIENCE_MS
from tests.browser.test_dashboard import PHONE, PICTURES, overflow, violations

DAY_MS = 86_400_000
START_MS = int(datetime(2026, 11, 8, tzinfo=UTC).timestamp() * 1000)
HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe"
LONG = "a-kind-whose-name-is-as-long-as-names-in-namespaces-get.v2.created"
DASHBOARD = "http://desk:8080"


@dataclass
class Data:
    """What was put onto the server, of which a report must tell."""

    stream: str
    since_ms: int
    until_ms: int
    kinds: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)  # lag and pending
    most_span_ms: int = 0  # of the time axis

    @property
    def messages(self) -> int:
        return self.kinds.total()


def add_dead_letter(pipe: Any, stream: str, source: str, fields: dict[str, Any], data: Data, at_ms: int) -> None:
    data.causes[fields["dlq_error"]] += 1
    pipe.xadd(stream, {**fields, "dlq_id": source, "dlq_source": data.stream}, id=f"{at_ms}-*")


def little(raw: redis.Redis) -> Data:
    """Three messages within a minute and a half, in a report on a day."""
    noon_ms = START_MS + DAY_MS // 2
    data = Data("orders", START_MS, START_MS + DAY_MS, most_span_ms=3 * 60_000)
    for n, kind in enumerate(["lamp", "lamp", HOSTILE]):
        payload = json.dumps({"kind": kind, "n": n})
        raw.xadd("orders", {"data": payload}, id=f"{noon_ms + n * 40_000}-0")
        data.kinds[kind] += 1
    fields = {"data": '{"kind": "lamp"}', "dlq_reason": "fatal", "dlq_error": "ValueError", "dlq_error_text": HOSTILE}
    add_dead_letter(raw, "orders_dlq", f"{noon_ms}-0", {**fields, "dlq_attempts": 1}, data, noon_ms + 5_000)
    data.failed["lamp"] += 1
    raw.xgroup_create("orders", "shipping", id="0")
    raw.xreadgroup("shipping", "ann", {"orders": ">"}, count=2)
    data.groups["shipping"] = (1, 2)
    return data


def some(raw: redis.Redis) -> Data:
    """Some hours of a task queue with results."""
    chance = random.Random(7)
    data = Data("jobs.tasks", START_MS, START_MS + DAY_MS // 4, most_span_ms=DAY_MS // 4 + 1)
    raw.sadd("{jobs}:lanes", "normal")
    pipe = raw.pipeline(transaction=False)
    span_ms = DAY_MS // 4 - 600_000
    times = sorted(START_MS + 60_000 + int(chance.triangular(0, span_ms, span_ms * 0.6)) for _ in range(2_000))
    for n, ms in enumerate(times):
        kind = chance.choice(["mail", "mail", "resize", "invoice"])
        task_id = f"{ms - chance.randrange(50):012x}7{n % 4096:03x}8{n:015x}"
        pipe.xadd(
            "jobs.tasks", {"data": b"x" * chance.randrange(2_000), "task_id": task_id, "kind": kind}, id=f"{ms}-{n}"
        )
        data.kinds[kind] += 1
        ended_ms = ms + chance.randrange(200, 9_000 if kind == "resize" else 2_500)
        attempts = 1 + (n % 9 == 0) + (n % 31 == 0)
        data.attempts[attempts] += 1
        if n % 40 == 0:
            fields = {
                "kind": kind,
                "dlq_reason": "max_deliveries",
                "dlq_error": chance.choice(["TimeoutError", "KeyError"]),
            }
            fields |= {"dlq_error_text": f"order {n} is missing", "dlq_attempts": attempts}
            add_dead_letter(pipe, "jobs.dead", f"{ms}-{n}", fields, data, ended_ms)
            data.failed[kind] += 1
            continue
        finished = datetime.fromtimestamp(ended_ms / 1000, UTC)
        started = datetime.fromtimestamp((ended_ms - 150) / 1000, UTC)
        result = Result(task_id=task_id, kind=kind, attempts=attempts, started_at=started, finished_at=finished)
        pipe.xadd("jobs.results", {"data": encode(result)}, id=f"{ms + 10_000}-{n}")
        pipe.hset("{jobs}:done", task_id, f"{ms + 10_000}-{n}")
    pipe.execute()
    raw.xgroup_create("jobs.tasks", "workers", id="$")
    data.groups["workers"] = (0, 0)
    return data


def much(raw: redis.Redis) -> Data:
    """Nine days, many kinds and causes, long names, several groups."""
    chance = random.Random(11)
    data = Data("events", START_MS, START_MS + 9 * DAY_MS, most_span_ms=10 * DAY_MS)
    kinds = [f"{LONG}.{n}" for n in range(45)]
    pipe = raw.pipeline(transaction=False)
    for n in range(40_000):
        ms = START_MS + 1_000 + n * 9 * DAY_MS // 40_010
        kind = kinds[min(int(chance.expovariate(0.12)), 44)]
        pipe.xadd(
            "events",
            {"data": b'{"n":1}', "key": f"customer-{n}@example.com", "headers": json.dumps({"kind": kind})},
            id=f"{ms}-0",
        )
        data.kinds[kind] += 1
        if n % 100 == 7:
            error = f"app.services.billing.errors.Error{chance.randrange(60)}"
            headers = json.dumps({"kind": kind})
            fields = {"headers": headers, "dlq_reason": "fatal", "dlq_error": error, "dlq_attempts": n % 12}
            fields["dlq_error_text"] = (
                f"customer 'c{n}' could not be charged: " + "the provider refused the request " * 4
            )
            add_dead_letter(pipe, "events_dlq", f"{ms}-0", fields, data, ms + 1_000)
            data.failed[kind] += 1
    pipe.execute()
    for n in range(4):
        raw.xgroup_create("events", f"group-{n}", id="0" if n else "$")
        data.groups[f"group-{n}"] = (40_000 if n else 0, 0)
    return data


@pytest.fixture(scope="module", params=[little, some, much], ids=lambda size: size.__name__)
def report(
    request: pytest.FixtureRequest, server_park: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Data, Path]:
    """A server with data, and the file that `penstock report` writes about it."""
    from tests.helpers.missing import usual_server

    server = server_park.get(usual_server())
    with redis.Redis(unix_socket_path=server.unix_socket) as raw:
        raw.flushall()
        data = request.param(raw)
    file = tmp_path_factory.mktemp("report") / f"{request.param.__name__}.html"
    span = ("--since", str(data.since_ms), "--until", str(data.until_ms))
    words = ("report", "--url", server.url, "--stream", data.stream, *span, "--output", str(file))
    environment = {**os.environ, "XDG_CACHE_HOME": str(Path(sys.prefix) / "cache")}  # where tests of Spark prepare Java
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--dashboard", DASHBOARD],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return data, file


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong, and which may ask for nothing but the file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith("file:") else None)
    yield page
    context.close()
    assert wrong == []


TABLES = """() => Object.fromEntries([...document.querySelectorAll('table')].map(table => [
    table.caption.innerText.split(':')[0],
    [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))]))"""
TILES = """() => Object.fromEntries([...document.querySelectorAll('.numbers > div')].map(tile => [
    tile.querySelector('dt').innerText, tile.querySelector('dd').innerText]))"""
PLOTS = """() => [...document.querySelectorAll('svg.plot')].map(svg => {
    const place = element => { const box = element.getBoundingClientRect(); return [box.left, box.right, box.top, box.bottom] };
    return {name: svg.querySelector('title').textContent, place: place(svg),
        bars: [...svg.querySelectorAll('rect')].map(bar => [bar.querySelector('title').textContent, ...place(bar)]),
        labels: [...svg.querySelectorAll('text.x')].filter(text => getComputedStyle(text).display != 'none').map(place)}})"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_tells_what_is_in_the_data(
    report: tuple[Data, Path], page: Page, axe: str, tmp_path: Path, theme: Any
) -> None:
    data, file = report
    page.emulate_media(color_scheme=theme)
    page.goto(file.as_uri())
    page.screenshot(path=tmp_path / f"{file.stem}-{theme}.png", full_page=True)
    check_look(page, axe, theme)
    check_tiles(page.evaluate(TILES), data)
    for summary in page.locator("summary").all():
        summary.click()
    check_tables(page.evaluate(TABLES), data)
    check_plots(page.evaluate(PLOTS), data)
    links = page.locator("a").evaluate_all("all => all.map(link => link.href)")
    assert any(link.startswith(f"{DASHBOARD}/dead-letter?stream=") for link in links)
    assert all(link.startswith(f"{DASHBOARD}/") for link in links)


def check_look(page: Page, axe: str, theme: str) -> None:
    brightness = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)"
    )
    assert (brightness > 600) == (theme == "light")
    assert violations(page, axe) == []
    assert overflow(page) == 0


def check_tiles(tiles: dict[str, str], data: Data) -> None:
    assert tiles["Messages"] == count(data.messages)
    assert tiles["Dead letters"] == count(data.causes.total())
    rate, _, counts = tiles["Failure rate"].partition(" % ")
    assert abs(float(rate) / 100 - data.failed.total() / data.messages) < 0.0001
    assert counts == f"{count(data.failed.total())} of {count(data.messages)}"
    assert tiles["Lag now"] == count(max(lag for lag, _ in data.groups.values()))
    assert tiles["Pending now"] == count(sum(pending for _, pending in data.groups.values()))


def check_tables(tables: dict[str, list[list[str]]], data: Data) -> None:
    assert {row[0]: (row[2], row[4]) for row in tables["When this report was made"]} == {
        name: (count(lag), count(pending)) for name, (lag, pending) in data.groups.items()
    }
    kinds = [(row[0].replace("\\u202e", "\u202e"), row[1], row[3]) for row in tables["The most frequent kinds"]]
    known = {(kind, count(n), count(data.failed[kind])) for kind, n in data.kinds.items()}
    assert set(kinds) <= known
    assert len(kinds) == min(20, len(data.kinds))
    causes: Counter[str] = Counter()
    for row in tables["By cause"]:
        causes[row[2].partition(": ")[0]] += int(row[0].replace(",", ""))
    assert {name: data.causes[name] for name in causes} == causes
    flow = [int(row[1].replace(",", "")) for row in tables["Messages over time"]]
    assert sum(flow) == data.messages
    attempts = {
        row[0]: int(row[1].replace(",", "")) + int(row[2])
        for row in tables["Results and dead letters by the number of attempts"]
    }
    if data.attempts:
        assert attempts == {str(n): times for n, times in data.attempts.items()}


def check_plots(plots: list[dict[str, Any]], data: Data) -> None:
    by_name = {plot["name"]: plot for plot in plots}
    assert sum(value_of(bar) for bar in by_name["Messages over time"]["bars"]) == data.messages
    assert sum(value_of(bar) for bar in by_name["Dead letters over time"]["bars"]) == data.causes.total()
    for plot in plots:
        left, right, top, bottom = plot["place"]
        for _, x1, x2, y1, y2 in plot["bars"]:
            assert x2 - x1 < (right - left) / 20  # no bar is a slab
            assert left <= x1 < x2 <= right
            assert top <= y1 < y2 <= bottom
        assert all(one[1] + 4 < other[0] for one, other in zip(plot["labels"], plot["labels"][1:], strict=False))
        assert all(left - 1 <= x1 < x2 <= right + 1 for x1, x2, _, _ in plot["labels"])
    times = [datetime.fromisoformat(f"{bar[0].rpartition(': ')[0]}Z") for bar in by_name["Messages over time"]["bars"]]
    assert (max(times) - min(times)).total_seconds() * 1000 <= data.most_span_ms
    [first, *_] = by_name["Messages over time"]["bars"]
    width = by_name["Messages over time"]["place"][1] - by_name["Messages over time"]["place"][0]
    if data.stream == "orders":  # little data fill the axis all the same
        last = by_name["Messages over time"]["bars"][-1]
        assert last[1] - first[1] > width / 2


def value_of(bar: list[Any]) -> int:
    return int(bar[0].rpartition(": ")[2].replace(",", ""))


def test_a_report_fits_on_a_phone(report: tuple[Data, Path], page: Page, axe: str, tmp_path: Path) -> None:
    _, file = report
    page.set_viewport_size(PHONE)
    page.goto(file.as_uri())
    page.screenshot(path=tmp_path / f"{file.stem}-phone.png", full_page=True)
    assert violations(page, axe) == []
    assert overflow(page) == 0
    for plot in page.evaluate(PLOTS):
        assert all(one[1] < other[0] for one, other in zip(plot["labels"], plot["labels"][1:], strict=False))


@pytest.mark.skipif(not os.environ.get("PENSTOCK_PICTURES"), reason="make pictures writes the pictures of the docs")
def test_pictures_of_a_report(report: tuple[Data, Path], page: Page) -> None:
    data, file = report
    if data.stream == "jobs.tasks":
        page.goto(file.as_uri())
        page.screenshot(path=PICTURES / "report.png")
