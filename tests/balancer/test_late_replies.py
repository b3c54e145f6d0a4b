"""Replies that are handled after the lock has run out: a stream counts as owned only while its lock is known to be held."""

from __future__ import annotations

import json

import pytest
import redis

from penstock import StreamClient
from penstock.balancer.heartbeat import Heartbeat
from penstock.balancer.messages import LBSInfo
from penstock.errors import AlreadyClaimed
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.balancer.stage import GROUP, LASTING, LBS, add_raw, age_locks, are_extended, locks, pending, quick
from tests.helpers.aio import eventually, is_done, join, start

TOKEN = "{svc-input}:token"


def orphan(raw: redis.Redis, name: str, consumer: str = "redis-consumer-dead") -> LBSInfo:
    """Adds a stream that a consumer has read long ago and never locked."""
    entry_id = add_raw(raw, name)
    raw.xgroup_create(LBS, GROUP, id="0")
    raw.xreadgroup(GROUP, consumer, {LBS: ">"})
    age_entry(raw, entry_id, consumer)
    return LBSInfo(name, entry_id)


def age_entry(raw: redis.Redis, entry_id: str, consumer: str) -> None:
    """Makes an entry one that its consumer has not touched for long."""
    raw.xclaim(LBS, GROUP, consumer, 0, [entry_id], idle=100_000, justid=True)


async def hold_replies(client: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    """Holds the replies to a client back that is connected and needs to load no script."""
    raw.script_load(script("balancer/own").source)
    await client.ping()
    fault_proxy.hold_replies()


async def let_lock_run_out(raw: redis.Redis, payload: LBSInfo, consumer: str) -> None:
    """Waits until the stream was granted to a consumer and its lock is gone; others may claim it then."""
    await eventually(lambda: raw.get(TOKEN) == b"1")
    await eventually(lambda: not locks(raw))
    age_entry(raw, payload.id_in_lbs, consumer)


async def test_a_claim_whose_reply_comes_after_another_consumer_took_the_stream_is_refused(
    client: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    payload = orphan(raw, "session-1")
    async with StreamClient.from_url(fault_proxy.url) as proxied:
        late, prompt = quick(proxied, "late"), quick(client, "prompt", **LASTING)
        await hold_replies(proxied, raw, fault_proxy)
        claim = start(late.claim, payload)
        await let_lock_run_out(raw, payload, late.id)
        await prompt.claim(payload)
        fault_proxy.release_replies()
        with pytest.raises(AlreadyClaimed, match="is owned by redis-consumer-prompt"):
            await join(claim)
        assert late.owned == []
        assert locks(raw) == {payload.lock: prompt.id}
        assert [owner for owner, _, _ in pending(raw).values()] == [prompt.id]
        await prompt.done()


async def test_a_claim_whose_reply_comes_after_the_lock_ran_out_takes_it_again_if_nobody_else_did(
    raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    payload = orphan(raw, "session-1")
    async with StreamClient.from_url(fault_proxy.url) as proxied:
        late = quick(proxied, "late", max_deliveries=2)
        await hold_replies(proxied, raw, fault_proxy)
        claim = start(late.claim, payload)
        await let_lock_run_out(raw, payload, late.id)
        fault_proxy.release_replies()
        ownership = await join(claim)
        assert ownership.token > 1, "the token is that of the lock that it has now"
        assert (ownership.payload, ownership.deliveries) == (payload, 2), "one claim is one delivery"
        assert [deliveries for _, _, deliveries in pending(raw).values()] == [2]
        assert late.owned == [ownership]
        await late.done()


async def test_a_new_stream_whose_lock_ran_out_before_the_reply_and_that_another_consumer_took_is_not_announced(
    client: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    payload = orphan(raw, "session-1", "redis-consumer-late")
    row = (payload.id_in_lbs, [b"lbs-input", json.dumps({"DataStreamName": "session-1"}).encode()])
    async with StreamClient.from_url(fault_proxy.url) as proxied:
        late, prompt = quick(proxied, "late"), quick(client, "prompt", **LASTING)
        await hold_replies(proxied, raw, fault_proxy)
        reading = start(late._reader._own, [row])
        await let_lock_run_out(raw, payload, late.id)
        await prompt.claim(payload)
        fault_proxy.release_replies()
        await join(reading)
        assert late.owned == []
        assert late._notices.room == late.config.output_chan_size, "there is no StreamAdded"
        assert locks(raw) == {payload.lock: prompt.id}
        await prompt.done()


async def test_the_lock_of_a_claim_is_extended_before_its_reply_is_handled(
    client: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    payload = orphan(raw, "session-1")
    async with StreamClient.from_url(fault_proxy.url) as proxied:
        late = quick(proxied, "late", **LASTING)
        # The heartbeat reaches the server directly: its thread runs while the event loop is starved.
        late._heartbeat = Heartbeat(
            client.settings, late.keys, late.id, late.config, late._holdings, late._on_lease_lost
        )
        late._beat()
        await hold_replies(proxied, raw, fault_proxy)
        claim = start(late.claim, payload)
        await eventually(lambda: locks(raw) == {payload.lock: late.id})
        for _ in range(2):
            age_locks(raw)
            await eventually(lambda: are_extended(raw))
        assert not is_done(claim)
        fault_proxy.release_replies()
        assert (await join(claim)).token == 1, "it was granted once"
        await late.done()
