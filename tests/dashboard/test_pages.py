"""Every page answers, as HTML and as JSON, says what there is, and where there is nothing says what to do."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import redis

import penstock.ops.streams as streams_module
from penstock.dashboard.live import LiveData
from penstock.dashboard.pages import PAGES
from penstock.errors import ConnectionLost, PenstockError
from penstock.ops import DeadLetterFilter, FailureGroups, Inspector
from penstock.sync import StreamClient
from tests.dashboard.conftest import StartDashboard
from tests.helpers.json_names import check

pytestmark = pytest.mark.usefixtures("default_server")


def _orders_dlq(raw: redis.Redis) -> str:
    return str(raw.xrevrange("orders_dlq", count=1)[0][0].decode())


def addresses(raw: redis.Redis) -> list[str]:
    """Returns an address of every page, and of every view of it."""
    entry = raw.xrevrange("orders", count=1)[0][0].decode()
    return [
        "/", "/streams", "/streams?match=ord&kind=stream", "/stream?name=orders", "/stream?name=orders&order=oldest&show=raw",
        "/stream?name=orders&from=1h&text=c-3", f"/entry?stream=orders&id={entry}", "/group?stream=orders&group=billing",
        "/group?stream=orders&group=billing&idle=1ms&consumer=billing-7f9c", "/dead-letters", "/dead-letters?stream=orders",
        "/dead-letters?stream=jobs", f"/dead-letter?stream=orders_dlq&id={_orders_dlq(raw)}", "/queues", "/tasks",
        "/tasks?queue=jobs&state=done", "/task?queue=jobs&id=photo-5", "/workers", "/workers?state=active", "/balancer",
        "/spark", "/retention", "/server", "/audit",
    ]  # fmt: skip


async def test_dead_letters_by_cause_are_found_again_as_rarely_as_they_are_costly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, asked = [1_000.0], list[tuple[str, DeadLetterFilter]]()

    class Letters:
        async def failures(self, stream: str, matching: DeadLetterFilter, most: int) -> FailureGroups:
            asked.append((stream, matching))
            now_s[0] += 0.1
            return FailureGroups((), len(asked), is_complete=True)

    live, everything = LiveData(cast("Inspector", SimpleNamespace(dead_letters=Letters())), 2.0), DeadLetterFilter()
    monkeypatch.setattr("penstock.dashboard.live.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    both = await asyncio.gather(*(live.failures("orders", everything, "") for _ in range(2)))
    assert [found.read for found in both] == [1, 1]
    now_s[0] += 4.9
    assert (await live.failures("orders", everything, "")).read == 1
    now_s[0] += 0.2
    assert (await live.failures("orders", everything, "")).read == 2
    live.forget()
    assert (await live.failures("orders", everything, "")).read == 3
    for n in range(100):
        await live.failures("orders", DeadLetterFilter(since_ms=n), f"reason-{n}")
    assert len(live._failures) == 50


async def test_browsers_share_the_values_of_a_page_until_the_next_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, samples, loaded = [1_000.0], [SimpleNamespace(number=1)], list[str]()
    live = LiveData(cast("Inspector", SimpleNamespace()), 2.0)
    monkeypatch.setattr("penstock.dashboard.live.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(live, "sampler", SimpleNamespace(samples=samples))

    async def ask(place: str) -> int:
        async def load() -> dict[str, Any]:
            loaded.append(place)
            await asyncio.sleep(0)  # others ask meanwhile
            return {"number": len(loaded)}

        return int((await live.page(place, load))["number"])

    assert await asyncio.gather(*(ask("/workers") for _ in range(5))) == [1] * 5
    assert await ask("/queues") == 2
    samples.append(SimpleNamespace(number=2))
    assert await asyncio.gather(*(ask("/workers") for _ in range(5))) == [3] * 5
    now_s[0] += 2  # where samples are rare
    assert await ask("/workers") == 4
    live.forget()
    assert await ask("/workers") == 5
    for n in range(100):
        await ask(f"/streams?match={n}")
    assert len(live._pages) == 50


async def test_browsers_share_the_failure_of_a_server_that_accepts_and_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, samples, loaded, connections = [1_000.0], list[Any](), list[int](), list[asyncio.StreamWriter]()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Inspector.from_url(url, socket_timeout=0.05) as inspector:
        live = LiveData(inspector, 2.0)
        monkeypatch.setattr("penstock.dashboard.live.time", SimpleNamespace(monotonic=lambda: now_s[0]))
        monkeypatch.setattr(live, "sampler", SimpleNamespace(samples=samples))

        async def load() -> dict[str, Any]:
            loaded.append(len(connections))
            try:
                return {"streams": await inspector.streams.page()}
            finally:
                samples.append(SimpleNamespace(number=len(samples) + 1, error="no answer"))  # it takes long

        async def ask(count: int) -> None:
            found = await asyncio.gather(*(live.page("/streams", load) for _ in range(count)), return_exceptions=True)
            assert all(isinstance(each, PenstockError) for each in found)

        await ask(5)
        tried = len(connections)
        assert (len(loaded), tried > 0) == (1, True)
        samples.append(SimpleNamespace(number=len(samples) + 1, error="no answer"))
        await ask(5)
        assert (len(loaded), len(connections)) == (1, tried)
        now_s[0] += 2
        await ask(5)
        assert len(loaded) == 2
        samples.append(SimpleNamespace(number=len(samples) + 1, error=""))  # it answers again
        await ask(5)
        assert len(loaded) == 3
        for writer in connections:
            writer.close()


def test_every_page_of_a_busy_server_answers_as_html_and_as_json(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard(allow_actions=True)
    seen = dict[str, list[object]]()
    for address in addresses(raw):
        path, _, query = address.partition("?")
        page = client.get(address)
        assert page.status_code == 200, (address, page.text)
        assert page.headers["content-type"].startswith("text/html")
        twin = client.get(f"{path if path != '/' else '/overview'}.json?{query}")
        assert twin.status_code == 200, (address, twin.text)
        seen.setdefault(path, []).append(twin.json())
    for each in PAGES:
        check(each.json_path, seen.pop(each.path))
    assert not seen


def test_every_page_of_an_empty_server_says_what_to_do_next(start_dashboard: StartDashboard) -> None:
    client = start_dashboard()
    for page in PAGES:
        if page.label and page.path != "/server":
            shown = client.get(page.path)
            assert shown.status_code == 200, shown.text
            assert 'class="panel empty"' in shown.text, page.path
            assert "<code>penstock " in shown.text, page.path


def test_what_does_not_exist_is_a_404_with_a_sentence(start_dashboard: StartDashboard) -> None:
    client = start_dashboard()
    for address in ("/stream?name=none", "/group?stream=none&group=g", "/entry?stream=none&id=1-1", "/nowhere",
                    "/dead-letters?stream=none", "/task?queue=none&id=1", "/dead-letter?stream=none&id=1-1"):  # fmt: skip
        page = client.get(address)
        assert page.status_code == 404, address
        assert "Back to the overview" in page.text
    assert client.get("/stream.json?name=none").json()["error"]


def test_bad_parameters_are_a_400_that_names_them(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client = start_dashboard()
    for address, word in (
        ("/stream", "name"), ("/stream?name=orders&limit=0", "limit"), ("/stream?name=orders&from=soon", "soon"),
        ("/streams?kind=lake", "kind"), ("/group?stream=orders&group=billing&idle=long", "long"),
        ("/tasks?queue=jobs&state=lost", "state"), ("/entry?stream=orders&id=x", "x"),
    ):  # fmt: skip
        page = client.get(address)
        assert page.status_code == 400, (address, page.text)
        assert word in page.text


def test_the_overview_counts_what_is_there(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    found = start_dashboard().get("/overview.json").json()
    assert found["totals"]["dead_letters"] == raw.xlen("orders_dlq") + raw.xlen("jobs.dead")
    rows = {row["stream"]["name"]: row for row in found["rows"]}
    assert rows["orders"]["stream"]["dead_letters"] == raw.xlen("orders_dlq")
    why = "group mailer has 60 unread messages"
    assert rows["invoices"]["state"] == {"text": "no consumers", "tone": "bad", "why": why}
    assert found["rows"][0]["stream"]["name"] == "invoices", "what needs somebody comes first"


def test_a_stream_is_opened_at_an_id_or_a_time(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client, ids = start_dashboard(), [entry_id.decode() for entry_id, _ in raw.xrange("orders")]

    def shown(**given: str) -> list[str]:
        page = client.get("/stream.json", params={"name": "orders", "limit": "200", "order": "oldest", **given}).json()
        return [entry["id"] for entry in page["page"]["items"]]

    assert shown(**{"from": ids[100]}) == ids[100:]
    assert shown(**{"from": ids[3], "to": ids[5]}) == ids[3:6]
    assert shown(**{"from": "1h"}) == ids
    assert shown(to="1h") == []


def test_an_entry_is_shown_decoded_and_raw(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    entry_id = raw.xrevrange("orders", count=1)[0][0].decode()
    page = start_dashboard().get("/entry", params={"stream": "orders", "id": entry_id}).text
    assert "&#34;order&#34;: 119" in page
    assert ">data</th>" in page


def test_a_dead_letter_shows_its_error_traceback_and_cause(
    start_dashboard: StartDashboard, world: StreamClient, raw: redis.Redis
) -> None:
    client = start_dashboard()
    groups = client.get("/dead-letters.json", params={"stream": "orders"}).json()["failures"]["groups"]
    assert sum(group["count"] for group in groups) == raw.xlen("orders_dlq")
    page = client.get("/dead-letter", params={"stream": "orders_dlq", "id": _orders_dlq(raw)}).text
    assert "FatalError" in page
    assert "has no address" in page
    assert "Traceback" in page


def test_all_pages_are_followed_by_their_cursors(start_dashboard: StartDashboard, world: StreamClient) -> None:
    client, seen, address = start_dashboard(), [], "/stream?name=orders&limit=50"
    while address:
        page = client.get(address).text
        seen += re.findall(r'class="mono" href="[^"]*">([\d-]+)</a>', page)
        further = re.search(r'rel="next" href="([^"]+)"', page)
        address = further[1].replace("&amp;", "&") if further else ""
    assert len(seen) == len(set(seen)) == 120


def _followed(client: httpx.Client, address: str, link: str, name: str) -> tuple[list[str], str]:
    """Returns the names in all pages that a link leads to, and the address of the last."""
    seen = list[str]()
    while True:
        page = client.get(address).text
        seen += re.findall(rf"{name}=([a-z]+-\d+)\"", page)
        further = re.search(rf'href="([^"]+)">more {link}<', page)
        if further is None:
            return seen, address
        address = html.unescape(further[1])


def test_groups_and_consumers_are_followed_to_the_last_and_beyond(
    start_dashboard: StartDashboard, raw: redis.Redis
) -> None:
    names = [f"g-{n}" for n in range(130)], [f"c-{n}" for n in range(60)]
    raw.xadd("orders", {"data": "{}"})
    with raw.pipeline() as pipe:
        for name in names[0]:
            pipe.xgroup_create("orders", name, "0")
        for name in names[1]:
            pipe.xgroup_createconsumer("orders", "g-0", name)
        pipe.execute()
    client = start_dashboard()
    assert "64 of 130 groups are listed" in client.get("/stream?name=orders").text
    for address, link, name, all_of_them, end in (
        ("/stream?name=orders", "groups", "group", names[0], "999"),
        ("/group?stream=orders&group=g-0", "consumers", "consumer", names[1], "d"),
    ):
        seen, last = _followed(client, address, link, name)
        assert sorted(seen) == sorted(all_of_them)
        beyond = client.get(re.sub(rf"{link}_cursor=[^&]+", f"{link}_cursor={end}", last)).text
        assert f"No more {link}." in beyond
        assert f'href="{html.escape(address)}">first {link}<' in beyond
        assert "too many" not in beyond
        assert "has read through" not in beyond


def test_streams_of_dead_letters_are_followed_by_their_cursor(
    start_dashboard: StartDashboard, raw: redis.Redis
) -> None:
    names = [f"s{n:02}_dlq" for n in range(60)]
    for name in names:
        raw.xadd(name, {"data": "x", "dlq_reason": "fatal"})
    client, seen, address = start_dashboard(), list[str](), "/dead-letters"
    while address:
        page = client.get(address).text
        seen += re.findall(r'class="name"><a href="[^"]*stream=(\w+)"', page)
        further = re.search(r'rel="next" href="([^"]+)"', page)
        address = html.unescape(further[1]) if further else ""
    assert seen == names
    chosen = client.get("/dead-letters?stream=s59_dlq").text
    assert '<option value="s59_dlq" selected>' in chosen
    assert 'cursor=s49_dlq">more streams<' in chosen
    assert "No more dead letters." in client.get("/dead-letters?cursor=z").text


def test_a_page_without_rows_leads_to_the_next(
    start_dashboard: StartDashboard, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MAX_PER_PAGE", 1)
    for n in range(60):
        raw.xadd(f"s{n:02}", {"data": "{}"})
    client = start_dashboard()
    page = client.get("/streams?kind=queue").text
    assert "No streams on this page; there may be more on the next." in page
    further = re.search(r'rel="next" href="([^"]+)"', page)
    assert further is not None
    assert "No more streams." in client.get(html.unescape(further[1])).text


def test_the_feed_begins_with_the_history_and_goes_on_with_samples(
    start_dashboard: StartDashboard, world: StreamClient
) -> None:
    names, data = [], []
    with start_dashboard().stream("GET", "/events") as feed:
        assert feed.headers["content-type"].startswith("text/event-stream")
        for line in feed.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                data.append(json.loads(line.removeprefix("data: ")))
            if len(data) == 3:
                break
    assert names == ["history", "sample", "sample"]
    assert data[0][-1]["at"] < data[1]["at"] < data[2]["at"]
    assert data[2]["dead_letters"] > 0


async def test_however_many_look_one_sampler_asks_the_server(redis_url: str) -> None:
    async with Inspector.from_url(redis_url) as inspector:
        live = LiveData(inspector, every_s=86_400.0)
        await asyncio.gather(*(live.start() for _ in range(5)))
        assert len(live.sampler.samples) == 1
        feeds = [live.feed() for _ in range(5)]
        histories = [await anext(feed) for feed in feeds]
        assert len(set(histories)) == 1
        assert histories[0].startswith("event: history")
        for feed in feeds:
            await feed.aclose()
        await live.close()


async def test_the_feed_is_current_after_an_outage_whatever_the_clocks_say(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + 3_600 * 10**9, monotonic=time.monotonic)

    async def fail(*_: object, **options: object) -> None:
        raise ConnectionLost("the connection broke")

    async with Inspector.from_url(redis_url) as inspector:
        live = LiveData(inspector, every_s=86_400.0)
        feed = live.feed()
        assert json.loads((await anext(feed)).partition("data: ")[2]) == []
        with monkeypatch.context() as patched:
            patched.setattr("penstock.ops.sampler.time", an_hour_ahead)
            patched.setattr("penstock.ops.streams.Streams.overview", fail)
            await live.sampler.sample()
        assert "the connection broke" in await anext(feed)
        await live.sampler.sample()
        text = await asyncio.wait_for(anext(feed), 60)
        assert json.loads(text.partition("data: ")[2])["error"] == ""
        assert [sample.number for sample in live.sampler.samples] == [1, 2]
        await feed.aclose()


def test_a_server_that_is_away_is_said_on_the_page_and_ends_no_feed(start_dashboard: StartDashboard) -> None:
    client = start_dashboard("redis://127.0.0.1:1")
    assert client.get("/streams").status_code == 503
    assert client.get("/streams.json").json()["error"]
    with client.stream("GET", "/events") as feed:
        for line in feed.iter_lines():
            if line.startswith("data: "):
                assert json.loads(line.removeprefix("data: "))[-1]["error"]
                break
