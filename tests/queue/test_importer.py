"""Queues of redis-message-queue are brought over whole: nothing is lost or doubled, however often it is run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator

import pytest
import redis
from redis import asyncio as driver

from penstock import DeadLetters, ImportReport, RedisMessageQueue, StreamClient, import_queue
from penstock.errors import ClusterSlotError, ConfigurationError, WrongType
from penstock.testing import Cluster, FaultProxy
from tests.helpers.aio import outcomes, start
from tests.helpers.list_queue import restore, stored

pytestmark = pytest.mark.every_server

QUEUE = "orders"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as made:
        yield made


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def payloads(raw: redis.Redis, key: str = QUEUE) -> list[str]:
    return [fields[b"data"].decode() for _, fields in raw.xrange(key)]


def waiting(raw: redis.Redis, count: int, size: int = 0) -> list[str]:
    """Fills the pending list of an old queue; returns the payloads, the oldest first."""
    made = [f"{number}{'x' * size}" for number in range(count)]
    for number, text in enumerate(made):
        raw.lpush(f"{QUEUE}::pending", stored(text, f"{number:032x}"))
    return made


async def finish(queue: RedisMessageQueue, count: int) -> list[str]:
    """Processes so many messages and returns them."""
    handled = []
    for _ in range(count):
        async with queue.process_message() as message:
            handled.append(message)
    return handled


async def fail(queue: RedisMessageQueue) -> None:
    """Fails with the next message."""
    async with queue.process_message() as message:
        raise ValueError(message)


# --- a whole queue --------------------------------------------------------------------------------


async def test_everything_of_a_queue_comes_over(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    report = await import_queue(client, QUEUE)
    assert report == ImportReport(pending=4, processing=1, dead_letters=1, completed=1, failed=1, dedup_keys=8)
    assert report.is_complete
    rows = raw.xrange(QUEUE)
    assert payloads(raw) == [
        "abandoned", "first", '{"a": "zwei", "b": 2}', "third: grüße 🚰", "fourth by a custom key",
    ]  # fmt: skip
    assert rows[1][1][b"message_id"] == b"5e52d13f8e774ef48d9c9e2f09b406f6"
    left = {key.decode() for key in raw.scan_iter()}
    assert {key for key in left if "::" in key} == {
        "orders::dlq", "orders::completed", "orders::failed", "orders::processing:lease_token_counter",
    }  # fmt: skip


async def test_messages_are_processed_as_any_other(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    await import_queue(client, QUEUE)
    queue = RedisMessageQueue(QUEUE, client=client, enable_completed_queue=True)
    assert (await finish(queue, 5))[:2] == ["abandoned", "first"]
    assert (await queue.stats()).completed == 6
    assert await queue.peek(6, source="completed") == [
        "fourth by a custom key", "third: grüße 🚰", '{"a": "zwei", "b": 2}', "first", "abandoned", "done",
    ]  # fmt: skip
    await queue.close()


async def test_dead_letters_are_full_records_that_can_be_redriven(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    await import_queue(client, QUEUE)
    (letter,) = await DeadLetters(client, QUEUE, f"{QUEUE}::dlq").list()
    assert (letter.data, letter.reason, letter.source_stream) == (b"poison", "max_deliveries", QUEUE)
    assert "redis-message-queue in 'orders::dlq'" in letter.error_text
    assert abs(letter.dead_at_ms - time.time() * 1000) < 60_000
    queue = RedisMessageQueue(QUEUE, client=client)
    assert await queue.redrive_dead_letters() == 1
    assert payloads(raw)[-1] == "poison"
    await queue.close()


async def test_a_second_run_brings_nothing(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    await import_queue(client, QUEUE)
    before = payloads(raw), payloads(raw, f"{QUEUE}::dlq"), payloads(raw, f"{QUEUE}::completed")
    assert await import_queue(client, QUEUE) == ImportReport()
    assert before == (payloads(raw), payloads(raw, f"{QUEUE}::dlq"), payloads(raw, f"{QUEUE}::completed"))


@pytest.mark.usefixtures("default_server")
async def test_a_queue_that_does_not_exist_brings_nothing(client: StreamClient, raw: redis.Redis) -> None:
    assert await import_queue(client, QUEUE) == ImportReport()
    assert raw.dbsize() == 0


@pytest.mark.usefixtures("default_server")
async def test_a_dry_run_changes_nothing(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    expected = ImportReport(pending=4, processing=1, dead_letters=1, completed=1, failed=1, dedup_keys=8)
    assert await import_queue(client, QUEUE, is_dry_run=True) == expected
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


# --- in flight ------------------------------------------------------------------------------------


async def test_a_message_under_a_lease_stays_until_the_lease_has_run_out(
    client: StreamClient, raw: redis.Redis
) -> None:
    restore(raw, "held", lease_ms=600_000)
    raw.lpush(f"{QUEUE}::dlq", "dead")
    report = await import_queue(client, QUEUE)
    assert (report.pending, report.processing, report.still_leased) == (1, 0, 1)
    assert not report.is_complete
    assert raw.type(f"{QUEUE}::dlq") == b"list", "the old consumer that holds the message still needs it"
    assert raw.llen(f"{QUEUE}::processing") == raw.hlen(f"{QUEUE}::processing:lease_tokens") == 1
    (held,) = raw.lrange(f"{QUEUE}::processing", 0, -1)
    raw.zadd(f"{QUEUE}::processing:lease_deadlines", {held: time.time() * 1000 - 1})
    report = await import_queue(client, QUEUE)
    assert (report.processing, report.still_leased, report.dead_letters) == (1, 0, 1)
    assert payloads(raw) == ["waiting", "held"]
    assert not list(raw.scan_iter(f"{QUEUE}::processing:claim_result*"))


@pytest.mark.usefixtures("default_server")
async def test_a_lease_is_counted_as_it_is_in_a_dry_run(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "held", lease_ms=600_000)
    report = await import_queue(client, QUEUE, is_dry_run=True)
    assert (report.pending, report.processing, report.still_leased) == (1, 0, 1)
    report = await import_queue(client, "parcels", is_dry_run=True)
    assert (report.pending, report.without_lease) == (1, 1)


async def test_a_message_that_was_taken_without_a_lease_comes_only_when_that_is_asked_for(
    client: StreamClient, raw: redis.Redis
) -> None:
    restore(raw, "held")
    report = await import_queue(client, "parcels")
    assert (report.pending, report.processing, report.without_lease) == (1, 0, 1)
    report = await import_queue(client, "parcels", include_unleased=True)
    assert (report.pending, report.processing, report.without_lease) == (0, 1, 0)
    assert payloads(raw, "parcels") == ["next", "taken"]
    assert not list(raw.scan_iter("parcels::*"))


@pytest.mark.usefixtures("default_server")
async def test_many_that_stay_do_not_hide_those_that_may_go(client: StreamClient, raw: redis.Redis) -> None:
    later = time.time() * 1000 + 600_000
    for number in range(450):
        value = stored(str(number), f"{number:032x}")
        raw.lpush(f"{QUEUE}::processing", value)
        raw.hset(f"{QUEUE}::processing:lease_tokens", value, number)
        raw.zadd(f"{QUEUE}::processing:lease_deadlines", {value: 1 if number % 3 == 0 else later})
    report = await import_queue(client, QUEUE)
    assert (report.processing, report.still_leased) == (150, 300)
    assert payloads(raw) == [str(number) for number in range(0, 450, 3)]


# --- deduplication keys ---------------------------------------------------------------------------


async def test_what_was_published_before_is_a_duplicate_afterwards(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    raw.pexpire(f"{QUEUE}::deduplication::{sha('first')}", 500_000)
    raw.pexpire(f"{QUEUE}::deduplication::{sha('done')}", 400_000)
    await import_queue(client, QUEUE)
    queue = RedisMessageQueue(QUEUE, client=client)
    assert not await queue.publish("first")
    assert not await queue.publish("done")
    assert not await queue.publish({"b": 2, "a": "zwei"})
    assert 400_000 < raw.pttl(f"{{{QUEUE}}}:dedup:{sha('first')}") <= 500_000
    assert 300_000 < raw.pttl(f"{{{QUEUE}}}:dedup:{sha('done')}") <= 400_000
    assert raw.get(f"{{{QUEUE}}}:dedup:{sha('first')}") == raw.xrange(QUEUE)[1][0]
    by_custom_key = RedisMessageQueue(QUEUE, client=client, get_deduplication_key=lambda m: "custom:" + str(m)[:6])
    assert not await by_custom_key.publish("fourth again")
    await by_custom_key.close()
    await queue.close()


async def test_a_dead_letter_frees_the_key_of_an_imported_message(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    await import_queue(client, QUEUE)
    queue = RedisMessageQueue(QUEUE, client=client, max_delivery_count=1)
    with pytest.raises(ValueError, match="abandoned"):
        await fail(queue)
    assert await queue.publish("abandoned")
    assert await queue.publish("poison"), "a dead letter of the old queue frees its key too"
    await queue.close()


@pytest.mark.usefixtures("default_server")
async def test_long_keys_and_keys_of_operations_are_told_apart(client: StreamClient, raw: redis.Redis) -> None:
    long = "k" * 400
    raw.set(f"{QUEUE}::deduplication::{long}", "", px=60_000)
    raw.set(f"{QUEUE}::deduplication::a:publish_operation_result:{'0' * 32}", "1", px=60_000)
    raw.set("orders*::deduplication::other", "", px=60_000)
    assert await import_queue(client, QUEUE) == ImportReport(dedup_keys=1)
    queue = RedisMessageQueue(QUEUE, client=client, get_deduplication_key=lambda _: long)
    assert not await queue.publish("anything")
    await queue.close()


# --- other shapes ---------------------------------------------------------------------------------


async def test_bare_and_broken_values_are_payloads(client: StreamClient, raw: redis.Redis) -> None:
    values = [b"bare", b"bare", b"\x1eRMQ1:{broken", b'\x1eRMQ1:{"id": 1, "payload": "x"}', b"\x1eRMQ1:[]", b"\xff\x00"]
    raw.lpush(f"{QUEUE}::pending", *values)
    assert (await import_queue(client, QUEUE)).pending == len(values)
    assert [fields[b"data"] for _, fields in raw.xrange(QUEUE)] == values
    assert b"content_type" not in raw.xrevrange(QUEUE, count=1)[0][1]


@pytest.mark.usefixtures("default_server")
async def test_another_separator_and_another_name_of_the_dead_letters(client: StreamClient, raw: redis.Redis) -> None:
    raw.lpush("orders/pending", "one")
    raw.lpush("graveyard", "dead")
    report = await import_queue(client, QUEUE, key_separator="/", dead_letter_queue="graveyard")
    assert report == ImportReport(pending=1, dead_letters=1)
    assert payloads(raw, "graveyard") == ["dead"]


@pytest.mark.usefixtures("default_server")
async def test_a_prefix_of_the_client_is_that_of_the_new_queue(redis_url: str, raw: redis.Redis) -> None:
    raw.lpush("orders::pending", "one")
    raw.lpush("orders::dlq", "dead")
    async with StreamClient.from_url(redis_url, prefix="app") as client:
        await import_queue(client, QUEUE)
    assert (payloads(raw, "app_orders"), payloads(raw, "app_orders::dlq")) == (["one"], ["dead"])


@pytest.mark.usefixtures("default_server")
async def test_a_redis_py_client_will_do(raw: redis.Redis, redis_url: str) -> None:
    waiting(raw, 3)
    async with driver.Redis.from_url(redis_url) as client:
        assert (await import_queue(client, QUEUE)).pending == 3


@pytest.mark.usefixtures("default_server")
async def test_what_is_no_such_queue_is_refused_and_left_alone(client: StreamClient, raw: redis.Redis) -> None:
    raw.set(f"{QUEUE}::pending", "a string")
    with pytest.raises(ConfigurationError, match="is a string, not a list"):
        await import_queue(client, QUEUE)
    raw.delete(f"{QUEUE}::pending")
    raw.lpush(f"{QUEUE}::pending", "one")
    raw.set(QUEUE, "not a stream")
    with pytest.raises(WrongType):
        await import_queue(client, QUEUE)
    assert raw.lrange(f"{QUEUE}::pending", 0, -1) == [b"one"]


# --- much, at once, and with faults ---------------------------------------------------------------


async def test_a_long_queue_comes_in_pages_and_in_order(client: StreamClient, raw: redis.Redis) -> None:
    expected = waiting(raw, 1_234)
    seen: list[int] = []
    report = await import_queue(client, QUEUE, on_progress=lambda so_far: seen.append(so_far.pending))
    assert report.pending == 1_234
    assert payloads(raw) == expected
    assert seen == sorted(seen)
    assert len(seen) > 10


@pytest.mark.usefixtures("default_server")
async def test_large_messages_do_not_go_in_one_call(client: StreamClient, raw: redis.Redis) -> None:
    expected = waiting(raw, 30, size=200_000)
    raw.config_resetstat()
    await import_queue(client, QUEUE)
    assert payloads(raw) == expected
    stats = raw.info("commandstats")
    assert sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")) >= 6


async def test_imports_at_the_same_time_share_the_work(client: StreamClient, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    expected = waiting(raw, 2_000)
    reports = await outcomes([start(import_queue, client, QUEUE) for _ in range(3)])
    assert sum(report.pending for report in reports) == 2_004
    assert sum(report.processing + report.dead_letters for report in reports) == 2
    assert payloads(raw)[-2_000:] == expected


@pytest.mark.usefixtures("default_server")
async def test_a_consumer_of_the_old_queue_may_take_messages_meanwhile(client: StreamClient, raw: redis.Redis) -> None:
    expected = waiting(raw, 500)

    def take(_: ImportReport) -> None:
        raw.lmove(f"{QUEUE}::pending", f"{QUEUE}::processing", "RIGHT", "LEFT")

    await import_queue(client, QUEUE, on_progress=take)
    taken = [value.decode().rpartition('":"')[2][:-2] for value in raw.lrange(f"{QUEUE}::processing", 0, -1)]
    assert taken
    assert sorted(payloads(raw) + taken, key=int) == expected


async def test_a_lost_reply_neither_loses_nor_doubles_a_message(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    expected = waiting(raw, 300)

    faults = [fault_proxy.drop_reply("EVAL"), fault_proxy.drop_reply("EVALSHA", 2)]

    def cut(_: ImportReport) -> None:
        if faults[-1].has_happened:
            faults.append(fault_proxy.drop_reply("EVALSHA"))

    async with StreamClient.from_url(fault_proxy.url) as client:
        await import_queue(client, QUEUE, on_progress=cut)
    assert len(faults) > 4
    assert payloads(raw)[-300:] == expected
    assert len(payloads(raw)) == 305
    assert payloads(raw, f"{QUEUE}::dlq") == ["poison"]


@pytest.mark.usefixtures("default_server")
async def test_a_full_server_leaves_the_rest_where_it_is(client: StreamClient, raw: redis.Redis) -> None:
    expected = waiting(raw, 50)
    raw.config_set("maxmemory", 1)
    with pytest.raises(Exception, match="memory"):
        await import_queue(client, QUEUE)
    raw.config_set("maxmemory", 0)
    assert (await import_queue(client, QUEUE)).pending == 50
    assert payloads(raw) == expected


async def test_in_a_cluster_the_queue_needs_a_hash_tag(cluster: Cluster) -> None:
    async with StreamClient.from_cluster([{"host": h, "port": p} for h, p in cluster.addresses]) as client:
        with pytest.raises(ClusterSlotError, match="hash tag"):
            await import_queue(client, QUEUE)
        key = "{orders}::pending"
        for number in range(3):
            await client.call(key, "LPUSH", key, stored(str(number), f"{number:032x}"))
        await client.call(key, "SET", "{orders}::deduplication::mine", "", "PX", 60_000)
        assert await import_queue(client, "{orders}") == ImportReport(pending=3, dedup_keys=1)
        assert await client.call("{orders}", "XLEN", "{orders}") == 3
