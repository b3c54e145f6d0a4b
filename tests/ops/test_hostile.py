"""Whatever somebody writes into streams, dead letters, tasks, queues and services, all of it can be looked at."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamClient
from penstock.errors import ConfigurationError, NotFound, PenstockError
from penstock.ops import Inspector, Sampler, TaskState
from penstock.tasks import RedisTaskQueue, Task
from penstock.testing.hostile import KINDS, hostile_entries
from tests.ops.stage import DEAD_LETTERS, GROUP, STREAM, add, read_as

pytestmark = pytest.mark.usefixtures("default_server")


STREAMS = (STREAM, DEAD_LETTERS, "jobs.tasks", "jobs.results", "jobs.dead", "mail", "mail::dlq", "svc-input")
GROUPS = {STREAM: GROUP, "mail": "queue", "svc-input": "svc-group"}


@pytest.fixture(params=range(2))
async def hostile(request: pytest.FixtureRequest, client: StreamClient, raw: redis.Redis) -> None:
    """Streams of all parts, with hostile entries of every kind in them, some handed out."""
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    for stream, group in GROUPS.items():
        raw.xgroup_create(stream, group, "0", mkstream=True)
    for stream in STREAMS:
        field = "lbs-input" if stream == "svc-input" else "data"
        for entry in hostile_entries(request.param, len(KINDS), payload_field=field):
            raw.execute_command("XADD", stream, *entry.words)
    for stream, group in GROUPS.items():
        read_as(raw, "someone", 20, stream, group)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("stream", STREAMS)
async def test_hostile_entries_are_shown(inspector: Inspector, stream: str) -> None:
    shown, cursor = 0, ""
    while True:
        page = await inspector.streams.entries(stream, limit=50, cursor=cursor)
        for entry in page.items:
            assert await inspector.streams.entry(stream, entry.id, max_value_bytes=100)
        shown, cursor = shown + len(page.items), page.cursor
        if not cursor:
            break
    assert shown >= len(KINDS)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("stream", [DEAD_LETTERS, "jobs.dead", "mail::dlq"])
async def test_hostile_dead_letters_are_shown(inspector: Inspector, stream: str) -> None:
    assert (await inspector.dead_letters.page(stream)).items
    assert (await inspector.dead_letters.failures(stream)).read
    assert [letter async for letter in inspector.dead_letters.records(stream)]
    await inspector.dead_letters.redrive(stream, dry_run=True)


@pytest.mark.usefixtures("hostile")
async def test_everything_else_is_seen_beside_hostile_entries(inspector: Inspector) -> None:
    await inspector.overview()
    await Sampler(inspector).sample()
    for state in (TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING, TaskState.SCHEDULED, TaskState.DONE):
        await inspector.tasks.tasks("jobs", state)
    for source in ("pending", "processing", "dead_letter"):
        await inspector.queues.peek("mail", 20, source=source)
    await inspector.pending.page(STREAM, GROUP)
    await inspector.services.streams("svc")
    await inspector.retention.page()
    await inspector.workers.page()
    await inspector.doctor()


async def test_names_that_somebody_makes_up_are_refused_or_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 1)
    for name in ("", " ", "a\nb", "x" * 600, "\udcff", "nothing", "../../etc", "{", "*", "[bold]", "a\x1b[2J"):
        for look in (
            inspector.streams.info,
            inspector.streams.entries,
            inspector.groups.of,
            inspector.dead_letters.page,
            inspector.queues.stats,
            inspector.tasks.info,
            inspector.services.info,
            inspector.retention.report,
        ):
            with pytest.raises((NotFound, ConfigurationError)):
                await look(name)
        for look_at_group in (inspector.groups.lag, inspector.groups.consumers, inspector.pending.page):
            with pytest.raises((NotFound, ConfigurationError)):
                await look_at_group(STREAM, name)
            with pytest.raises((NotFound, ConfigurationError)):
                await look_at_group(name or "nothing", GROUP)


@pytest.mark.parametrize("limit", [0, -1, 1.5])
async def test_a_page_of_nothing_is_refused(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, limit: int
) -> None:
    add(raw, 1)
    read_as(raw, "someone", 1)
    raw.xadd(DEAD_LETTERS, {"data": "x", "dlq_reason": "fatal"})
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.streams.page(limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.streams.entries(STREAM, limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.groups.consumers(STREAM, GROUP, limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.pending.page(STREAM, GROUP, limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.dead_letters.page(DEAD_LETTERS, limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.tasks.tasks("jobs", limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.workers.page(limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.services.streams("svc", limit=limit)
    with pytest.raises(ConfigurationError, match="limit="):
        await inspector.retention.page(limit=limit)


async def test_cursors_and_ids_that_somebody_makes_up_are_refused(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    add(raw, 1)
    read_as(raw, "someone", 1)
    raw.xadd(DEAD_LETTERS, {"data": "x", "dlq_reason": "fatal"})
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    for text in ("x", "-", "9" * 40, "1-1-1", "("):
        with pytest.raises(PenstockError):
            await inspector.streams.entries(STREAM, cursor=text)
        with pytest.raises(PenstockError):
            await inspector.pending.page(STREAM, GROUP, cursor=text)
        with pytest.raises(PenstockError):
            await inspector.dead_letters.page(DEAD_LETTERS, cursor=text)
        with pytest.raises(PenstockError):
            await inspector.pending.retry(STREAM, GROUP, [text])
        with pytest.raises(PenstockError):
            await inspector.tasks.tasks("jobs", cursor=f"normal {text}")


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("cursor", ["0-0", "18446744073709551615-18446744073709551615"])
async def test_a_cursor_at_the_border_of_all_ids_is_none_that_the_server_refuses(
    inspector: Inspector, cursor: str
) -> None:
    for newest_first in (True, False):
        is_at_end = newest_first == (cursor == "0-0")
        found = await inspector.streams.entries(STREAM, newest_first=newest_first, cursor=cursor)
        assert bool(found.items) != is_at_end
        letters = await inspector.dead_letters.page(DEAD_LETTERS, newest_first=newest_first, cursor=cursor)
        assert bool(letters.items) != is_at_end
    assert bool((await inspector.pending.page(STREAM, GROUP, cursor=cursor)).items) == (cursor == "0-0")
    for state in (TaskState.QUEUED, TaskState.DONE):
        await inspector.tasks.tasks("jobs", state, cursor=f" {cursor}" if state is TaskState.QUEUED else cursor)
    await inspector.services.streams("svc", cursor=cursor)
