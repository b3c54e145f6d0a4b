"""Any gateway keeps one contract, and a queue refuses to go on with one that breaks it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import (
    AbstractRedisGateway,
    ClaimedMessage,
    EventDrivenInterruptHandler,
    RedisGateway,
    RedisMessageQueue,
    StreamClient,
)
from penstock.errors import ConfigurationTypeError, FatalError, GatewayContractError
from penstock.events import Event, EventName
from penstock.testing.gateway_contract import GatewayContract
from tests.helpers.aio import Event as Signal
from tests.helpers.aio import eventually, wait_for
from tests.queue.memory_gateway import Broker, MemoryGateway
from tests.queue.stage import fail, of_kind, take, take_all

pytestmark = pytest.mark.every_server

NAME = "orders"


@pytest.mark.acl(stream=("{contract-*}",))
class TestRedisGateway(GatewayContract):
    @pytest.fixture(autouse=True)
    async def _server(self, redis_url: str) -> AsyncIterator[None]:
        async with StreamClient.from_url(redis_url) as self.client:
            yield

    async def make_gateway(self, lease_s: float | None) -> AbstractRedisGateway:
        return RedisGateway(
            redis_client=self.client, message_visibility_timeout_seconds=lease_s, message_wait_interval_seconds=0.2
        )


@pytest.mark.usefixtures("default_server")
class TestRedisGatewayAtMostOnce(TestRedisGateway):
    has_leases = False


class TestMemoryGateway(GatewayContract):
    @pytest.fixture(autouse=True)
    def _broker(self) -> None:
        self.broker = Broker()

    async def make_gateway(self, lease_s: float | None) -> AbstractRedisGateway:
        return MemoryGateway(self.broker, lease_s)


class TestMemoryGatewayWithoutLeases(TestMemoryGateway):
    has_leases = False


# --- a queue over a gateway of the user's own ---------------------------------------------------------


async def test_a_queue_works_over_any_gateway() -> None:
    broker = Broker()
    queue = RedisMessageQueue(
        NAME,
        gateway=MemoryGateway(broker, dead_letter_queue="dead"),
        enable_completed_queue=True,
        max_completed_length=2,
    )
    for n in range(4):
        assert await queue.publish({"n": n}) is True
    assert await queue.publish({"n": 0}) is False
    assert await take_all(queue) == [f'{{"n": {n}}}' for n in range(4)]
    assert list(broker.queue(queue.key.completed)) == ['{"n": 2}', '{"n": 3}']
    assert broker.leases == {}


async def test_failures_are_tried_again_buried_or_discarded_over_any_gateway() -> None:
    broker = Broker()
    gateway = MemoryGateway(broker, dead_letter_queue="dead")
    queue = RedisMessageQueue(NAME, gateway=gateway)
    await queue.publish("hello")
    await fail(queue, ValueError("not now"))
    await fail(queue, KeyboardInterrupt())
    assert list(broker.queue(NAME)) == ["hello"]
    await fail(queue, FatalError("never"))
    assert (list(broker.queue(NAME)), list(broker.queue("dead"))) == ([], ["hello"])

    terminal = RedisMessageQueue(NAME, gateway=gateway, on_failure="terminal", enable_failed_queue=True)
    await terminal.publish("world")
    await fail(terminal)
    assert list(broker.queue(terminal.key.failed)) == ["world"]
    assert broker.leases == {}


async def test_heartbeats_keep_a_lease_over_any_gateway() -> None:
    broker, events = Broker(), list[Event]()
    queue = RedisMessageQueue(
        NAME, gateway=MemoryGateway(broker, 30), heartbeat_interval_seconds=0.05, on_event=events.append
    )
    await queue.publish("hello")
    async with queue.process_message():
        [(_, _, first)] = broker.leases.values()
        await eventually(lambda: [until for _, _, until in broker.leases.values()] > [first + 0.2])
        assert await MemoryGateway(broker).wait_for_message_and_move(NAME, "") is None
    assert of_kind(events, EventName.LEASE_LOST) == []


async def test_a_lost_lease_is_told_over_any_gateway() -> None:
    broker, events, lost = Broker(), list[Event](), Signal()
    queue = RedisMessageQueue(
        NAME, gateway=MemoryGateway(broker, 30), heartbeat_interval_seconds=0.05, on_event=events.append,
        on_heartbeat_failure=lost.set,
    )  # fmt: skip
    await queue.publish("hello")
    processing = queue.process_message()
    async with processing:
        broker.leases.clear()
        await wait_for(lost)
        assert processing.lease_lost
    assert [event.name.value for event in events] == ["lease_lost", "stale"]


async def test_an_interrupt_of_the_queue_holds_over_any_gateway() -> None:
    broker, stop = Broker(), threading.Event()
    queue = RedisMessageQueue(NAME, gateway=MemoryGateway(broker), interrupt=EventDrivenInterruptHandler(stop))
    await queue.publish("hello")
    stop.set()
    assert await take(queue) is None
    assert list(broker.queue(NAME)) == ["hello"]


async def test_what_looks_into_streams_says_that_it_cannot_look_elsewhere() -> None:
    queue = RedisMessageQueue(NAME, gateway=MemoryGateway(Broker()))
    for look in (queue.stats, queue.peek, queue.redrive_dead_letters):
        with pytest.raises(ConfigurationTypeError, match="use the tools of the broker behind MemoryGateway"):
            await look()
    assert await queue.drain() is True
    await queue.close()


class Counting(RedisGateway):
    """A gateway of a user's own that is ours but for one method."""

    removed = 0

    async def remove_message(self, queue: str, message: Any, *, lease_token: str | None = None) -> bool:
        self.removed += 1
        return await super().remove_message(queue, message, lease_token=lease_token)


@pytest.mark.usefixtures("default_server")
async def test_what_a_subclass_of_our_gateway_does_in_its_own_way_is_done_so(client: StreamClient) -> None:
    gateway = Counting(
        redis_client=client, message_visibility_timeout_seconds=30, message_wait_interval_seconds=0.2,
        max_delivery_count=3, dead_letter_queue="orders::dlq",
    )  # fmt: skip
    queue = RedisMessageQueue(NAME, gateway=gateway, retry_delay_seconds=0.001)
    await queue.publish("hello")
    assert await fail(queue) == ("hello", 1, 1)
    assert await eventually(lambda: take(queue)) == "hello"
    assert (gateway.removed, (await queue.stats()).processing) == (1, 0)
    await queue.close()


# --- failing closed -----------------------------------------------------------------------------------


class Careless(MemoryGateway):
    """A gateway that answers what it is told to."""

    def __init__(self, lease_s: float | None = 30.0, **answers: Any) -> None:
        super().__init__(Broker(), lease_s)
        self.answers, self.settled = answers, list[str]()

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> Any:
        return self.answers.get("claim", ClaimedMessage("hello", "token"))

    async def publish_message(self, queue: str, message: str, dedup_key: str) -> Any:
        return self.answers.get("publish", True)

    async def add_message(self, queue: str, message: str) -> Any:
        return self.answers.get("add")

    async def remove_message(self, queue: str, message: Any, *, lease_token: str | None = None) -> Any:
        self.settled.append("removed")
        return self.answers.get("remove", True)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("hello", "returned a plain str; it must return ClaimedMessage"),
        (b"hello", "returned a plain bytes; it must return ClaimedMessage"),
        (ClaimedMessage("hello", ""), "without a lease_token"),
        (ClaimedMessage("hello", None), "without a lease_token"),  # type: ignore[arg-type]
        (ClaimedMessage("hello", 5), "lease_token must be a str, not int"),  # type: ignore[arg-type]
        (ClaimedMessage(5, "token"), "returned a int; it must return ClaimedMessage"),  # type: ignore[arg-type]
        (("hello", "token"), "tuple"),
        (42, "int"),
    ],
    ids=repr,
)
async def test_a_gateway_with_leases_must_give_tokens(claim: Any, words: str) -> None:
    gateway = Careless(claim=claim)
    queue, bodies = RedisMessageQueue(NAME, gateway=gateway), list[Any]()

    async def work() -> None:
        async with queue.process_message() as message:
            bodies.append(message)

    with pytest.raises(GatewayContractError, match=words) as caught:
        await work()
    assert isinstance(caught.value, TypeError)
    assert (bodies, gateway.settled) == ([], []), "nothing begins, and nothing is settled"
    assert await queue.drain(timeout=0) is True, "nor is anything in hand"


async def test_a_gateway_without_leases_may_give_plain_texts_and_bytes() -> None:
    for found in ("hello", b"hello"):
        gateway = Careless(None, claim=found)
        assert await take(RedisMessageQueue(NAME, gateway=gateway)) == found
        assert gateway.settled == ["removed"]
    with pytest.raises(GatewayContractError, match="returned a int; it must return ClaimedMessage, str or bytes"):
        await take(RedisMessageQueue(NAME, gateway=Careless(None, claim=42)))


@pytest.mark.parametrize("answer", [None, 1, 0, "yes"], ids=repr)
async def test_publish_message_must_say_true_or_false(answer: Any) -> None:
    queue = RedisMessageQueue(NAME, gateway=Careless(publish=answer))
    with pytest.raises(GatewayContractError, match=r"publish_message\(\) must return True or False, not"):
        await queue.publish("hello")


@pytest.mark.parametrize("answer", [True, False, 1], ids=repr)
async def test_add_message_must_return_nothing(answer: Any) -> None:
    queue = RedisMessageQueue(NAME, gateway=Careless(add=answer), deduplication=False)
    with pytest.raises(GatewayContractError, match=r"add_message\(\) must return None, not"):
        await queue.publish("hello")


@pytest.mark.parametrize("answer", [None, 1, 0, "yes"], ids=repr)
async def test_settling_must_say_true_or_false(answer: Any) -> None:
    queue = RedisMessageQueue(NAME, gateway=Careless(remove=answer))
    with pytest.raises(GatewayContractError, match="must return True or False when a message is settled, not"):
        await take(queue)


async def test_a_message_that_belongs_to_somebody_else_by_now_is_told_as_stale() -> None:
    events: list[Event] = []
    queue = RedisMessageQueue(NAME, gateway=Careless(remove=False), on_event=events.append)
    processing = queue.process_message()
    async with processing:
        pass
    assert processing.lease_lost
    assert [event.name.value for event in events] == ["stale"]


@pytest.mark.parametrize("lease_s", ["30", True, 0, -1, [30]], ids=repr)
async def test_a_lease_that_is_no_time_is_refused(lease_s: Any) -> None:
    with pytest.raises(ValueError, match="message_visibility_timeout_seconds"):
        RedisMessageQueue(NAME, gateway=Careless(lease_s))


async def test_a_gateway_must_have_every_method() -> None:
    class Half(AbstractRedisGateway):
        async def add_message(self, queue: str, message: str) -> None:
            pass

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
