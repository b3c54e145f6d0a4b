"""Pending messages are filtered, claimed, made due again and given up."""

from __future__ import annotations

import pytest
import redis

from penstock import ConsumerConfig, DeadLetters, StreamClient, StreamConsumer, StreamMessage
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import Inspector
from tests.helpers.ageing import Ageing
from tests.helpers.aio import eventually, join, start
from tests.ops.stage import DEAD_LETTERS, GROUP, STREAM, add, read_as

pytestmark = pytest.mark.usefixtures("default_server")


async def test_pages_of_pending_messages_go_on(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 7)
    ids, found, cursor = read_as(raw, "one", 7), list[str](), ""
    while True:
        page = await inspector.pending.page(STREAM, GROUP, limit=3, cursor=cursor)
        found += [entry.id for entry in page.items]
        cursor = page.cursor
        if not cursor:
            break
    assert found == ids


async def test_pending_messages_are_filtered(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 6)
    of_one, of_two = read_as(raw, "one", 3), read_as(raw, "two", 3)
    Ageing(raw, STREAM, GROUP).expire(of_two[0])
    assert [each.id for each in (await inspector.pending.page(STREAM, GROUP, consumer="one")).items] == of_one
    [old] = (await inspector.pending.page(STREAM, GROUP, min_idle_ms=100_000)).items
    assert (old.id, old.consumer, old.deliveries, old.due_in_ms) == (of_two[0], "two", 1, None)
    assert (await inspector.pending.page(STREAM, GROUP, is_waiting=True)).items == ()
    with pytest.raises(NotFound, match="has no group 'nobody'"):
        await inspector.pending.page(STREAM, "nobody")


async def test_a_stream_that_does_not_exist_is_told_from_a_group_that_does_not(inspector: Inspector) -> None:
    pending, missing = inspector.pending, "stream 'nothing' does not exist"
    with pytest.raises(NotFound, match=missing):
        await pending.page("nothing", GROUP)
    with pytest.raises(NotFound, match=missing):
        await pending.claim("nothing", GROUP, ["1-0"], "somebody")
    with pytest.raises(NotFound, match=missing):
        await pending.retry("nothing", GROUP, ["1-0"])
    with pytest.raises(NotFound, match=missing):
        await pending.dead_letter("nothing", GROUP, ["1-0"], dead_letters="orders_dlq")
    with pytest.raises(NotFound, match=missing):
        await inspector.groups.consumers("nothing", GROUP)


async def test_the_work_for_one_page_is_bounded(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ops.pending._STEP", 10)
    monkeypatch.setattr("penstock.ops.pending._MAX_STEPS", 2)
    add(raw, 50)
    ids = read_as(raw, "one", 50)
    page = await inspector.pending.page(STREAM, GROUP, min_idle_ms=100_000)
    assert (page.items, page.cursor) == ((), ids[19])


async def test_a_message_is_claimed_for_another_consumer(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 2)
    ids = read_as(raw, "one", 2)
    assert await inspector.pending.claim(STREAM, GROUP, ids, "two", min_idle_ms=100_000) == []
    assert await inspector.pending.claim(STREAM, GROUP, ids, "two") == ids
    assert [each.consumer for each in (await inspector.pending.page(STREAM, GROUP)).items] == ["two", "two"]
    with pytest.raises(ConfigurationError):
        await inspector.pending.claim(STREAM, GROUP, ids, "")


async def test_a_message_without_an_entry_stays_with_its_holder(inspector: Inspector, raw: redis.Redis) -> None:
    first, second = add(raw, 2)
    read_as(raw, "one", 2)
    raw.xdel(STREAM, first)
    assert await inspector.pending.claim(STREAM, GROUP, [first, second, "1-1"], "two") == [second]
    page = await inspector.pending.page(STREAM, GROUP)
    assert [(each.id, each.consumer) for each in page.items] == [(first, "one"), (second, "two")]


async def test_large_messages_are_claimed_a_few_at_a_time(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 5, data=b"x" * 300_000)
    ids = read_as(raw, "one", 5)
    assert await inspector.pending.claim(STREAM, GROUP, ids, "two") == ids


async def test_a_message_that_is_made_due_is_handled_by_whoever_comes_next(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    add(raw, 2)
    first, second = read_as(raw, "gone", 2)
    assert await inspector.pending.retry(STREAM, GROUP, [first, "1-1"], min_idle_ms=100_000) == []
    assert await inspector.pending.retry(STREAM, GROUP, [first, "1-1"]) == [first]
    seen = list[str]()

    async def handle(message: StreamMessage) -> None:
        seen.append(message.id)

    consumer = StreamConsumer(client, STREAM, ConsumerConfig(group=GROUP, block_ms=50), message_handler=handle)
    run = start(consumer.run)
    await eventually(lambda: seen)
    consumer.stop()
    await join(run)
    assert seen == [first], "the other one is with its holder, whose lease has not run out"
    assert [each.id for each in (await inspector.pending.page(STREAM, GROUP)).items] == [second]


async def test_a_message_is_given_up_by_an_operator(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    add(raw, 2, data=b'"a"')
    ids = read_as(raw, "one", 2)
    gone = await inspector.pending.dead_letter(STREAM, GROUP, [ids[0], "1-1"], dead_letters=DEAD_LETTERS, note="broken")
    assert gone == [ids[0]]
    [letter] = await DeadLetters(client, STREAM).list()
    assert (letter.reason, letter.error_text, letter.data, letter.consumer) == ("operator", "broken", b'"a"', "one")
    assert raw.xpending(STREAM, GROUP)["pending"] == 1
    with pytest.raises(ConfigurationError, match="the stream itself"):
        await inspector.pending.dead_letter(STREAM, GROUP, ids, dead_letters=STREAM)
