"""One live holder at a time: what a silent one held is handed out again, and its late word counts for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

# async only
import asyncio  # isort: skip

# end async only
from penstock import RedisMessageQueue, StreamClient
from penstock.errors import FatalError
from penstock.events import EventName
from penstock.runtime.aio import Cancelled
from penstock.testing import FaultProxy
from tests.helpers.aio import eventually, join, next_turn, start
from tests.queue.scenes import (
    COMPLETED,
    DEAD_LETTERS,
    FAILED,
    LONG_S,
    QUEUE,
    Events,
    age,
    at_most_once,
    look_again,
    payloads,
    pending,
    queue_of,
    quick_gateway,
    records,
    take,
    taken,
)

pytestmark = pytest.mark.every_server

HANDED_BACK = [Cancelled(), KeyboardInterrupt(), GeneratorExit()]


@pytest.fixture
async def lease_client(redis_url: str) -> AsyncIterator[StreamClient]:
    async with StreamClient.from_url(redis_url) as client:
        yield client


@pytest.fixture(params=["two slots", "two gateways"])
def two_queues(request: pytest.FixtureRequest, lease_client: StreamClient) -> Any:
    """Makes two queues, of one process or of two."""

    def make(**options: Any) -> tuple[RedisMessageQueue, RedisMessageQueue]:
        one = quick_gateway(lease_client)
        other = one if request.param == "two slots" else quick_gateway(lease_client)
        return queue_of(one, **options), queue_of(other, **options)

    return make


# --- the visibility timeout -------------------------------------------------------------------------


async def test_a_message_in_hand_is_nobody_elses(two_queues: Any, raw: redis.Redis) -> None:
    mine, other = two_queues()
    await mine.publish("a")
    held = await taken(mine)
    age(raw, LONG_S - 30)
    look_again(other._gateway)
    assert await take(other) is None
    await held.end()
    assert pending(raw) == {}
    assert raw.xlen(QUEUE) == 0


async def test_a_message_whose_holder_is_silent_is_handed_out_again(two_queues: Any, raw: redis.Redis) -> None:
    mine, other = two_queues()
    await mine.publish("a")
    silent = await taken(mine)
    age(raw)
    look_again(other._gateway)
    again = await taken(other)
    assert again.message == "a"
    assert again.processing.message_id == silent.processing.message_id
    assert (again.processing.delivery_count, again.processing.attempts) == (2, 2)
    assert again.token != silent.token
    await again.end()
    assert raw.xlen(QUEUE) == 0


async def test_a_short_lease_runs_out_by_itself(lease_client: StreamClient) -> None:
    gateway = quick_gateway(
        lease_client, message_visibility_timeout_seconds=0.2, message_wait_interval_seconds=60, max_delivery_count=3
    )
    queue = queue_of(gateway)
    await queue.publish("a")
    tokens = [await taken(queue) for _ in range(3)]
    assert [held.number for held in tokens] == [1, 2, 3]


async def test_the_last_chance_that_ends_in_silence_ends_in_the_dead_letters(
    lease_client: StreamClient, raw: redis.Redis
) -> None:
    gateway = quick_gateway(lease_client, max_delivery_count=2)
    queue = queue_of(gateway)
    await queue.publish("a")
    for _ in range(2):
        await taken(queue)
        age(raw)
        look_again(gateway)
    assert await take(queue) is None
    (letter,) = records(raw, DEAD_LETTERS)
    assert (letter["dlq_reason"], letter["dlq_attempts"]) == (b"max_deliveries", b"2")
    assert (letter["dlq_error"], b"in attempt 2" in letter["dlq_error_text"]) == (b"WorkerDied", True)
    assert pending(raw) == {}
    assert await queue.publish("a")  # the producer's retry is not swallowed


# --- a stale holder ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, None),
        ({"enable_completed_queue": True}, None),
        ({}, ValueError("failed")),
        ({}, FatalError("failed")),
        ({"enable_failed_queue": True, "on_failure": "terminal"}, ValueError("failed")),
        ({"on_failure": "terminal"}, ValueError("failed")),
        *(({}, error) for error in HANDED_BACK),
    ],
    ids=str,
)
async def test_a_stale_holder_can_settle_nothing(
    two_queues: Any, raw: redis.Redis, options: dict[str, Any], error: BaseException | None
) -> None:
    events = Events()
    mine, other = two_queues(on_event=events, **options)
    await mine.publish("a")
    stale = await taken(mine)
    age(raw)
    look_again(other._gateway)
    live = await taken(other)
    before = pending(raw)
    await stale.end(error)
    assert stale.processing.lease_lost
    assert len(events.of(EventName.STALE)) == 1
    assert pending(raw) == before
    assert [raw.xlen(key) for key in (QUEUE, COMPLETED, FAILED, DEAD_LETTERS)] == [1, 0, 0, 0]
    await live.end()
    assert not live.processing.lease_lost
    assert raw.xlen(QUEUE) == 0


async def test_a_stale_holder_can_renew_nothing(two_queues: Any, raw: redis.Redis) -> None:
    mine, other = two_queues()
    await mine.publish("a")
    stale = await taken(mine)
    age(raw)
    look_again(other._gateway)
    live = await taken(other)
    age(raw, 30)
    assert not await mine._gateway.renew_message_lease(QUEUE, stale.message, stale.token)
    assert raw.xpending_range(QUEUE, "queue", "-", "+", 1)[0]["time_since_delivered"] >= 30_000
    assert await other._gateway.renew_message_lease(QUEUE, live.message, live.token)
    assert raw.xpending_range(QUEUE, "queue", "-", "+", 1)[0]["time_since_delivered"] < 30_000


async def test_a_message_that_somebody_else_has_finished_is_not_finished_again(
    two_queues: Any, raw: redis.Redis
) -> None:
    mine, other = two_queues(enable_completed_queue=True)
    await mine.publish("a")
    stale = await taken(mine)
    age(raw)
    look_again(other._gateway)
    await (await taken(other)).end()
    await stale.end()
    assert stale.processing.lease_lost
    assert payloads(raw, COMPLETED) == ["a"]


async def test_a_holder_whose_lease_ran_out_may_finish_what_nobody_took(
    lease_client: StreamClient, raw: redis.Redis
) -> None:
    queue = queue_of(quick_gateway(lease_client))
    await queue.publish("a")
    held = await taken(queue)
    age(raw)
    await held.end()
    assert not held.processing.lease_lost
    assert raw.xlen(QUEUE) == 0


async def test_a_token_opens_one_message_only(lease_client: StreamClient, raw: redis.Redis) -> None:
    gateway = quick_gateway(lease_client)
    queue = queue_of(gateway)
    await queue.publish("a")
    held = await taken(queue)
    for token in ("", "1:0-1:nobody", held.token.replace(":", "|")):
        assert not await gateway.remove_message(QUEUE, "a", lease_token=token)
        assert not await gateway.renew_message_lease(QUEUE, "a", token)
        assert not await gateway.return_message(QUEUE, QUEUE, "a", lease_token=token)
        assert not await gateway.dead_letter_message(QUEUE, "a", lease_token=token)
    assert len(pending(raw)) == 1
    await held.end()


async def test_tokens_rise_whatever_ended_the_lease(lease_client: StreamClient, raw: redis.Redis) -> None:
    gateway = quick_gateway(lease_client, message_wait_interval_seconds=60)
    queue = queue_of(gateway)
    await queue.publish("a")
    numbers, tokens = [], []
    for error in (ValueError("failed"), KeyboardInterrupt(), None, Cancelled(), None, ValueError("failed"), None):
        held = await taken(queue)
        numbers.append(held.number)
        tokens.append(held.token)
        if error is None:
            age(raw)
            look_again(gateway)
        else:
            await held.end(error)
    assert numbers == list(range(1, 8))
    assert len(set(tokens)) == 7


# --- hand-backs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", HANDED_BACK, ids=lambda error: type(error).__name__)
async def test_what_is_interrupted_goes_back_and_counts_no_attempt(
    lease_client: StreamClient, raw: redis.Redis, error: BaseException
) -> None:
    gateway = quick_gateway(lease_client, max_delivery_count=1, message_wait_interval_seconds=60)
    queue = queue_of(gateway)
    await queue.publish("a")
    for deliveries in (1, 2, 3):
        held = await taken(queue)
        assert (held.processing.delivery_count, held.processing.attempts) == (deliveries, 1)
        await held.end(error)
    assert raw.xlen(DEAD_LETTERS) == 0
    await (await taken(queue)).end()
    assert raw.xlen(QUEUE) == 0


async def test_another_process_gets_what_was_handed_back_at_once(two_queues: Any) -> None:
    mine, other = two_queues()
    await mine.publish("a")
    held = await taken(mine)
    await held.end(KeyboardInterrupt())
    look_again(other._gateway)
    assert (await taken(other)).message == "a"


# async only
async def test_a_cancelled_handler_hands_its_message_back(lease_client: StreamClient, raw: redis.Redis) -> None:
    queue = queue_of(quick_gateway(lease_client, max_delivery_count=1, message_wait_interval_seconds=60))
    await queue.publish("a")
    has_begun = asyncio.Event()

    async def work() -> None:
        async with queue.process_message():
            has_begun.set()
            await asyncio.Event().wait()

    task = start(work)
    await eventually(has_begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await join(task)
    assert (await taken(queue)).processing.attempts == 1


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("options", "error", "place"),
    [
        ({}, None, None),
        ({"enable_completed_queue": True}, None, COMPLETED),
        ({"on_failure": "terminal", "enable_failed_queue": True}, ValueError("failed"), FAILED),
        ({}, FatalError("failed"), DEAD_LETTERS),
    ],
    ids=["quick", "logged", "terminal", "dead"],
)
@pytest.mark.parametrize("cancellations", [1, 3])
async def test_the_end_of_a_message_survives_cancellation(
    fault_proxy: FaultProxy,
    raw: redis.Redis,
    options: dict[str, Any],
    error: BaseException | None,
    place: str | None,
    cancellations: int,
) -> None:
    async with StreamClient.from_url(fault_proxy.url) as client:
        queue = queue_of(quick_gateway(client), **options)
        await queue.publish("a")
        held = await taken(queue)
        fault_proxy.hold_replies()
        seen = fault_proxy.count("EVALSHA")
        ending = start(held.end, error)
        await eventually(lambda: fault_proxy.count("EVALSHA") > seen)
        for _ in range(cancellations):
            ending.cancel()
            await next_turn()
        fault_proxy.release_replies()
        with pytest.raises(asyncio.CancelledError):
            await join(ending)
        assert raw.xlen(QUEUE) == 0
        assert pending(raw) == {}
        assert place is None or payloads(raw, place) == ["a"]
        assert not held.processing.lease_lost
        await queue.publish("b")
        assert (await taken(queue)).message == "b"


async def test_a_cancelled_wait_loses_nothing(lease_client: StreamClient, raw: redis.Redis) -> None:
    gateway = quick_gateway(lease_client, message_wait_interval_seconds=60)
    queue = queue_of(gateway)
    for number in range(20):
        waiting = start(take, queue)
        await eventually(lambda: raw.exists(QUEUE) and _is_blocked(raw))
        await queue.publish(f"{number}")  # and at the same moment:
        waiting.cancel()
        try:
            held = await join(waiting)
        except asyncio.CancelledError:
            held = await taken(queue)
        assert (held.message, held.number) == (f"{number}", 1)
        await held.end()


def _is_blocked(raw: redis.Redis) -> bool:
    return bool(raw.info("clients")["blocked_clients"])


# end async only


# --- at most once -----------------------------------------------------------------------------------


async def test_at_most_once_nobody_takes_over(lease_client: StreamClient, raw: redis.Redis) -> None:
    mine, other = (queue_of(at_most_once(lease_client)) for _ in range(2))
    await mine.publish("a")
    forgotten = await taken(mine)
    age(raw, 10 * 86_400)
    for queue in (mine, other):
        look_again(queue._gateway)
        assert await take(queue) is None
    assert len(pending(raw)) == 1
    await forgotten.end()
    assert raw.xlen(QUEUE) == 0


@pytest.mark.parametrize("error", [ValueError("failed"), *HANDED_BACK], ids=lambda error: type(error).__name__)
async def test_at_most_once_a_failure_is_not_tried_again(
    lease_client: StreamClient, raw: redis.Redis, error: BaseException
) -> None:
    gateway = at_most_once(lease_client)
    queue = queue_of(gateway)
    await queue.publish("a")
    await (await taken(queue)).end(error)
    look_again(gateway)
    assert await take(queue) is None
    assert payloads(raw, DEAD_LETTERS) == ["a"]
    assert raw.xlen(QUEUE) == 0
