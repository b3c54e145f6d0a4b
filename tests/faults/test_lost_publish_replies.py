"""Publishing over a link that loses things: every message once, and nobody is left guessing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.errors import ConnectionFailed, PublishUnknown
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.faults.checker import body
from tests.faults.conftest import STREAM, Scene
from tests.faults.producers import push, push_many

pytestmark = pytest.mark.usefixtures("default_server")
PUBLISH = script("streams/publish").sha.encode()


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_lost_reply_adds_no_second_entry(ending: str, half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    scene.load_scripts()
    fault = fault_proxy.drop_reply("EVALSHA", containing=PUBLISH, ending=ending)

    entry_id = push(half, fault_proxy.url, STREAM, body(1))

    assert fault.has_happened
    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == [entry_id]


def test_a_lost_request_is_sent_again(half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    scene.load_scripts()
    fault = fault_proxy.drop_request("EVALSHA", containing=PUBLISH)

    entry_id = push(half, fault_proxy.url, STREAM, body(1))

    assert fault.has_happened
    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == [entry_id]


def test_many_lost_replies_in_a_row_add_no_second_entry(half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    scene.load_scripts()
    faults = [fault_proxy.drop_reply("EVALSHA", containing=PUBLISH) for _ in range(5)]

    ids = push_many(half, fault_proxy.url, STREAM, [body(n) for n in range(10)])

    assert all(fault.has_happened for fault in faults)
    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == ids


def test_a_link_that_goes_mute_is_given_up_and_the_batch_sent_again(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    fault = fault_proxy.drop_reply("EVALSHA", containing=PUBLISH, ending="black_hole")

    entry_id = push(half, f"{fault_proxy.url}?socket_timeout=0.3", STREAM, body(1))

    assert fault.has_happened
    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == [entry_id]


def test_a_reset_in_the_middle_of_many_batches_leaves_every_item_in_place(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    faults = [
        fault_proxy.drop_reply("EVALSHA", nth=3, containing=PUBLISH, ending="reset"),
        fault_proxy.drop_request("EVALSHA", nth=5, containing=PUBLISH, ending="reset"),
        fault_proxy.drop_reply("EVALSHA", nth=8, containing=PUBLISH, ending="reset"),
    ]

    ids = push_many(half, fault_proxy.url, STREAM, [body(n) for n in range(1_000)], max_batch=100)

    assert all(fault.has_happened for fault in faults)
    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == ids
    assert len(set(ids)) == 1_000


async def test_callers_that_travel_together_all_get_the_id_of_their_own_message(
    scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    async with penstock.StreamClient.from_url(fault_proxy.url) as client:
        producer = penstock.StreamProducer(client, STREAM)
        fault = fault_proxy.drop_reply("EVALSHA", nth=2, containing=PUBLISH, ending="reset")
        ids = [await producer.push(body(0))]
        ids += await asyncio.gather(*(producer.push(body(n)) for n in range(1, 200)))

    assert fault.has_happened
    stored = {row[0].decode(): row[1][b"data"] for row in scene.raw.xrange(STREAM)}
    assert len(stored) == 200
    assert all(f'"n":{n},'.encode() in stored[entry_id] for n, entry_id in enumerate(ids))


def test_when_the_budget_is_used_up_the_caller_learns_which_messages_are_in_doubt(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    # Silence first: the producer notices it only when nobody can connect any more.
    fault = fault_proxy.drop_reply("EVALSHA", nth=2, containing=PUBLISH, ending="black_hole")
    bodies = [body(n) for n in range(30)]

    def go_away() -> None:
        assert fault.wait()
        fault_proxy.refuse()

    with ThreadPoolExecutor() as threads:
        threads.submit(go_away)
        with pytest.raises(PublishUnknown) as failure:
            push_many(half, f"{fault_proxy.url}?socket_timeout=3", STREAM, bodies, max_batch=10, retry_budget_ms=500)

    assert "Publish again only if duplicates are acceptable" in str(failure.value)
    stored = {row[0].decode(): row[1][b"message_id"].decode() for row in scene.raw.xrange(STREAM)}
    in_doubt = set(failure.value.message_ids)
    assert len(stored) == 20, "the first batch was confirmed, the second executed, the third never sent"
    assert {message_id for message_id in stored.values() if message_id not in in_doubt} == set(
        list(stored.values())[:10]
    )
    assert set(list(stored.values())[10:20]) <= in_doubt


def test_a_message_in_doubt_can_be_published_again_under_its_key(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    fault_proxy.drop_reply("EVALSHA", containing=PUBLISH, ending="black_hole")
    with pytest.raises(PublishUnknown, match="Publish again with the same dedup_key"):
        push(
            half,
            f"{fault_proxy.url}?socket_timeout=0.2",
            STREAM,
            body(1),
            {"dedup_key": "order-1"},
            retry_budget_ms=100,
        )

    entry_id = push(half, scene.url, STREAM, body(1), {"dedup_key": "order-1"})

    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == [entry_id]


def test_without_a_server_the_caller_is_told_that_nothing_was_published(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    fault_proxy.refuse()

    with pytest.raises(ConnectionFailed):
        push(half, fault_proxy.url, STREAM, body(1), retry_budget_ms=200)

    assert scene.raw.exists(STREAM) == 0


def test_one_key_published_by_many_at_once_gives_one_entry_and_everybody_its_id(scene: Scene) -> None:
    def publish(n: int) -> str:
        return push("async" if n % 2 else "sync", scene.url, STREAM, body(n), {"dedup_key": "order-1"})

    with ThreadPoolExecutor(8) as threads:
        ids = set(threads.map(publish, range(16)))

    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == list(ids)


def test_a_key_may_be_used_again_when_its_window_is_over(half: str, scene: Scene) -> None:
    first = push(half, scene.url, STREAM, body(1), {"dedup_key": "order-1", "dedup_window_ms": 50})
    ids = {first}
    while ids == {first}:  # the window ends by the server's clock
        ids.add(push(half, scene.url, STREAM, body(2), {"dedup_key": "order-1", "dedup_window_ms": 60_000}))

    assert {row[0].decode() for row in scene.raw.xrange(STREAM)} == ids
