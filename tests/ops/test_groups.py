"""Groups are moved and deleted, and their consumers are told apart: active, idle, dead."""

from __future__ import annotations

import pytest
import redis

import penstock.ops.groups as groups_module
import penstock.ops.workers as workers_module
from penstock import ConsumerConfig, ConsumerGroup, RedisMessageQueue, StreamClient, StreamConsumer, StreamProducer
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import ConsumerState, GroupInfo, Inspector, Page
from penstock.ops.model.groups import dead_after_ms
from tests.helpers.ageing import LEASE_MS, Ageing
from tests.ops.stage import GROUP, STREAM, add, read_as

pytestmark = pytest.mark.usefixtures("default_server")


async def test_consumers_are_active_idle_or_dead(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 2)
    read_as(raw, "busy", 1)
    raw.xgroup_createconsumer(STREAM, GROUP, "idler")
    found = (await inspector.groups.consumers(STREAM, GROUP)).items
    assert [(each.name, each.state) for each in found] == [
        ("busy", ConsumerState.ACTIVE), ("idler", ConsumerState.IDLE),
    ]  # fmt: skip
    dead = await inspector.groups.consumers(STREAM, GROUP, dead_after_ms=-1, state=ConsumerState.DEAD)
    assert [each.name for each in dead.items] == ["busy", "idler"]
    assert (await inspector.groups.consumers(STREAM, GROUP, limit=1)).cursor == "busy"
    assert [each.name for each in (await inspector.groups.consumers(STREAM, GROUP, cursor="busy")).items] == ["idler"]


async def test_a_worker_is_one_however_many_streams_it_reads(inspector: Inspector, raw: redis.Redis) -> None:
    for stream in ("a", "b"):
        add(raw, 1, stream)
        read_as(raw, "worker-1", 1, stream)
    raw.xgroup_createconsumer("a", GROUP, "worker-2")
    found = (await inspector.workers.page()).items
    assert [(each.name, each.streams, each.pending, each.state) for each in found] == [
        ("worker-1", ("a", "b"), 2, ConsumerState.ACTIVE), ("worker-2", ("a",), 0, ConsumerState.IDLE),
    ]  # fmt: skip
    assert [each.name for each in (await inspector.workers.page(state=ConsumerState.IDLE)).items] == ["worker-2"]
    assert (await inspector.workers.page(limit=1)).cursor == "worker-1"


async def test_dead_consumers_that_hold_nothing_are_removed(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 1)
    read_as(raw, "busy", 1)
    raw.xgroup_createconsumer(STREAM, GROUP, "idler")
    assert await inspector.groups.remove_dead_consumers(STREAM, GROUP, idle_ms=0) == ["idler"]


@pytest.mark.parametrize(("to", "unread"), [("-", 5), ("+", 0), (2, 3)])
async def test_a_group_is_moved(inspector: Inspector, raw: redis.Redis, to: str | int, unread: int) -> None:
    ids = add(raw, 5)
    read_as(raw, "someone", 1)
    position = ids[1] if to == 2 else to
    await inspector.groups.seek(STREAM, GROUP, position)
    assert len(read_as(raw, "someone", 10)) == unread


async def test_a_group_is_moved_to_a_time(inspector: Inspector, raw: redis.Redis) -> None:
    for ms in (1_000, 2_000, 3_000):
        raw.xadd(STREAM, {"data": "x"}, id=f"{ms}-0")
    raw.xgroup_create(STREAM, GROUP, "$")
    await inspector.groups.seek(STREAM, GROUP, 2_000)
    assert read_as(raw, "someone", 10) == ["2000-0", "3000-0"]
    with pytest.raises(ConfigurationError, match="not a stream id"):
        await inspector.groups.seek(STREAM, GROUP, "noon")


async def test_a_group_with_pending_messages_is_deleted_only_by_force(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await StreamProducer(client, STREAM).push_many([1, 2])

    async def fail(message: object) -> None:
        raise ValueError("not now")

    await StreamConsumer(client, STREAM, ConsumerConfig(group=GROUP, block_ms=10), message_handler=fail).run_once()
    with pytest.raises(ConfigurationError, match="2 pending messages"):
        await inspector.groups.delete(STREAM, GROUP)
    assert await inspector.groups.delete(STREAM, GROUP, force=True) == 2
    assert raw.xinfo_groups(STREAM) == []
    assert [key for key in raw.scan_iter() if GROUP.encode() in key] == []
    with pytest.raises(NotFound):
        await inspector.groups.delete(STREAM, GROUP)


async def test_a_group_with_live_consumers_is_deleted_only_by_force(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    raw.xgroup_createconsumer(STREAM, GROUP, "idler")
    with pytest.raises(ConfigurationError, match=r"live consumers \(1\), which would create it again at the beginning"):
        await inspector.groups.delete(STREAM, GROUP)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups_module, "usual_dead_after_ms", lambda _: -1)
        assert await inspector.groups.delete(STREAM, GROUP) == 0
    raw.xgroup_create(STREAM, GROUP, "0")
    raw.xgroup_createconsumer(STREAM, GROUP, "idler")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups_module, "MAX_CONSUMERS", 0)
        with pytest.raises(ConfigurationError, match="live consumers"):
            await inspector.groups.delete(STREAM, GROUP)
    assert await inspector.groups.delete(STREAM, GROUP, force=True) == 0
    assert raw.xinfo_groups(STREAM) == []


async def test_groups_with_too_many_consumers_to_list_are_named(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    for n in range(3):
        raw.xgroup_createconsumer(STREAM, GROUP, f"pod-{n}")
    assert await inspector.workers.unlisted() == []
    monkeypatch.setattr(workers_module, "MAX_CONSUMERS", 2)
    assert (await inspector.workers.page()).items == ()
    assert await inspector.workers.unlisted() == [(STREAM, GROUP)]


async def test_the_server_is_not_asked_for_too_many_consumers(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    for n in range(3):
        raw.xgroup_createconsumer(STREAM, GROUP, f"pod-{n}")
    assert len((await inspector.groups.consumers(STREAM, GROUP)).items) == 3
    monkeypatch.setattr(groups_module, "MAX_CONSUMERS", 2)
    raw.config_resetstat()
    assert await inspector.groups.consumers(STREAM, GROUP) == Page(())
    assert not [name for name in raw.info("commandstats") if "consumers" in name]
    for place in ((STREAM, "nothing"), ("nothing", GROUP)):
        with pytest.raises(NotFound):
            await inspector.groups.consumers(*place)


@pytest.mark.every_server
async def test_pages_hold_all_groups_of_a_stream(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 3)
    raw.xgroup_create(STREAM, b"\xff\xfe", "0")  # which no text can name
    names = {f"group-{n:03}" for n in range(139)}
    for name in names:
        raw.xgroup_create(STREAM, name, "0")
    found, cursor = list[GroupInfo](), ""
    while True:
        page = await inspector.groups.page(STREAM, limit=50, cursor=cursor)
        assert len(page.items) <= 50
        found += page.items
        cursor = page.cursor
        if not cursor:
            break
    assert len(found) == 140
    assert names < {each.name for each in found}
    assert {each.lag.count for each in found} == {3}
    assert len((await inspector.groups.page(STREAM, limit=1_000)).items) == len(await inspector.groups.of(STREAM)) == 64
    assert await inspector.groups.page(STREAM, cursor="140") == Page(())
    with pytest.raises(NotFound):
        await inspector.groups.page("nothing")


async def test_a_group_beyond_those_in_lists_is_found_by_its_name(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 5)
    for n in range(64):
        raw.xgroup_create(STREAM, f"group-{n:02}", "0")
    raw.xgroup_create(STREAM, "zeta", ids[0])
    stream = await inspector.streams.info(STREAM)
    assert (len(stream.groups), stream.groups_count) == (64, 65)
    [zeta] = {each["name"] for each in raw.xinfo_groups(STREAM)} - {each.name.encode() for each in stream.groups}
    group = zeta.decode()
    assert (await inspector.groups.info(STREAM, group)).name == group
    assert (await inspector.groups.lag(STREAM, group)).count == (4 if group == "zeta" else 5)
    assert await inspector.groups.seek(STREAM, group, ids[2]) == ids[2]
    assert (await inspector.groups.lag(STREAM, group)).count == 2
    await inspector.groups.delete(STREAM, group)
    assert len(raw.xinfo_groups(STREAM)) == 64


async def test_what_waits_for_a_retry_is_counted(client: StreamClient, inspector: Inspector) -> None:
    await StreamProducer(client, STREAM).push(1)
    await ConsumerGroup(client, STREAM, GROUP).ensure()

    async def fail(message: object) -> None:
        raise ValueError("not now")

    config = ConsumerConfig(group=GROUP, block_ms=10, retry_initial_delay_ms=60_000, retry_max_delay_ms=60_000)
    await StreamConsumer(client, STREAM, config, message_handler=fail).run_once()
    info = await inspector.groups.info(STREAM, GROUP)
    assert (info.pending, info.retries_waiting, info.lag.count) == (1, 1, 0)


async def test_a_message_that_waits_for_its_next_run_is_left_alone_from_then_on(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    add(raw, 3)
    ids, retries, ageing = read_as(raw, "one", 3), client.keys(STREAM).retries(GROUP), Ageing(raw, STREAM, GROUP)
    now_ms = raw.time()[0] * 1000

    async def longest() -> tuple[str, int]:
        info = await inspector.groups.info(STREAM, GROUP)
        return info.oldest_pending_id, info.oldest_pending_idle_ms // 1000

    ageing.expire(*ids[:2])
    assert await longest() == (ids[0], 2 * LEASE_MS // 1000)
    for entry_id in ids[:2]:
        raw.zadd(retries, {entry_id: now_ms + 3_600_000})
    assert (await longest())[1] == 0, "it is not due before an hour has passed"
    ageing.age(ids[2])
    assert await longest() == (ids[2], LEASE_MS * 2 // 3 // 1000)
    raw.zadd(retries, {ids[1]: now_ms - 300_000})
    found = await longest()
    assert found[0] == ids[1]
    assert 300 <= found[1] < 360


async def test_a_consumer_of_a_message_queue_may_be_silent_for_a_lease(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    queue = RedisMessageQueue("mails", client=client)
    await queue.publish("hello")
    async with queue.process_message():
        ageing = Ageing(raw, "mails", "queue")
        ageing.expire()
        [worker] = (await inspector.workers.page()).items
        assert worker.state is ConsumerState.ACTIVE
    assert dead_after_ms("queue") > 300_000 > dead_after_ms("others")
