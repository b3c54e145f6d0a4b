"""GatewayContract: what a queue relies on, as tests that any gateway can run.

Derive a class of tests from it and say how to make a gateway:

    class TestMyGateway(GatewayContract):
        async def make_gateway(self, lease_s):
            return MyGateway(visibility_timeout=lease_s)

Async tests need a plugin that runs them, such as pytest-asyncio in its auto mode. `penstock.sync.testing` has the same
for gateways of the sync half.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from penstock.errors import FatalError
from penstock.queue.abstract_gateway import AbstractRedisGateway
from penstock.queue.message_queue import RedisMessageQueue
from penstock.queue.model import ClaimedMessage, MessageData
from penstock.runtime.aio import pause

_LONG_S, _SHORT_S, _PATIENCE_S = 30.0, 0.5, 30.0


class GatewayContract:
    """The promises of a gateway; override make_gateway(), and the flags of what the broker does not have."""

    has_leases = True
    has_deduplication = True

    async def make_gateway(self, lease_s: float | None) -> AbstractRedisGateway:
        """Return a new gateway to one and the same broker, whose leases last so long (None = it has none).

        Its wait_for_message_and_move() should wait a second at most.
        """
        raise NotImplementedError

    # --- what the tests need ------------------------------------------------------------------------

    @asynccontextmanager
    async def gateway(self, lease_s: float | None = _LONG_S) -> AsyncIterator[AbstractRedisGateway]:
        """Make a gateway and close it afterwards."""
        made = await self.make_gateway(lease_s if self.has_leases else None)
        try:
            yield made
        finally:
            await made.close()

    @staticmethod
    def names() -> tuple[str, str, str]:
        """Return names for what is pending, in process, and logged, which no other test uses."""
        name = f"{{contract-{uuid4().hex[:8]}}}"
        return name, f"{name}::processing", f"{name}::completed"

    @staticmethod
    async def take(gateway: AbstractRedisGateway, pending: str, processing: str) -> tuple[MessageData, str | None]:
        """Take a message, waiting for one; return it and its token."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            found = await gateway.wait_for_message_and_move(pending, processing)
            if isinstance(found, ClaimedMessage):
                return found.stored_message, found.lease_token
            if found is not None:
                return found, None
            await pause(0.01)
        raise AssertionError(f"no message came within {_PATIENCE_S} s")

    @staticmethod
    async def is_empty(gateway: AbstractRedisGateway, pending: str, processing: str) -> bool:
        """Tell whether there is nothing to take."""
        return await gateway.wait_for_message_and_move(pending, processing) is None

    # --- adding and taking --------------------------------------------------------------------------

    async def test_an_empty_queue_gives_none(self) -> None:
        """A wait ends."""
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            assert await gateway.wait_for_message_and_move(pending, processing) is None

    async def test_add_message_returns_nothing_and_messages_come_in_order(self) -> None:
        """First in, first out."""
        pending, processing, _ = self.names()
        texts = ["first", "", "Zürich \N{PARTY POPPER}", '{"a": 1}', "last"]
        async with self.gateway() as gateway:
            add: Callable[[str, str], Awaitable[object]] = gateway.add_message
            for text in texts:
                assert await add(pending, text) is None, "add_message() must return None"
            for text in texts:
                message, token = await self.take(gateway, pending, processing)
                assert _text(message) == text, f"{message!r} should be {text!r}"
                is_removed = await gateway.remove_message(processing, message, lease_token=token)
                assert is_removed is True, f"remove_message() must return True, not {is_removed!r}"
            assert await self.is_empty(gateway, pending, processing)

    async def test_equal_messages_are_two_messages(self) -> None:
        """Settling one leaves the other alone."""
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            await gateway.add_message(pending, "same")
            await gateway.add_message(pending, "same")
            first = await self.take(gateway, pending, processing)
            second = await self.take(gateway, pending, processing)
            for message, token in (first, second):
                assert await gateway.remove_message(processing, message, lease_token=token) is True
            assert await self.is_empty(gateway, pending, processing)

    async def test_what_is_taken_is_handed_to_nobody_else(self) -> None:
        """One holder at a time."""
        pending, processing, _ = self.names()
        async with self.gateway() as gateway, self.gateway() as rival:
            await gateway.add_message(pending, "hello")
            message, token = await self.take(gateway, pending, processing)
            assert await self.is_empty(rival, pending, processing)
            assert await gateway.remove_message(processing, message, lease_token=token) is True

    async def test_queues_do_not_touch_each_other(self) -> None:
        """Names keep them apart."""
        one, one_processing, _ = self.names()
        other, other_processing, _ = self.names()
        async with self.gateway() as gateway:
            await gateway.add_message(one, "hello")
            assert await self.is_empty(gateway, other, other_processing)
            message, token = await self.take(gateway, one, one_processing)
            assert await gateway.remove_message(one_processing, message, lease_token=token) is True

    async def test_a_published_key_lets_one_message_in(self) -> None:
        """publish_message() says whether it was added."""
        if not self.has_deduplication:
            return
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            given = (("a", "1"), ("b", "1"), ("c", "2"))
            answers = [await gateway.publish_message(pending, text, key) for text, key in given]
            assert answers == [True, False, True], f"publish_message() must return True, False, True, not {answers}"
            found = []
            for _ in range(2):
                message, token = await self.take(gateway, pending, processing)
                found.append(_text(message))
                await gateway.remove_message(processing, message, lease_token=token)
            assert found == ["a", "c"]
            assert await self.is_empty(gateway, pending, processing)

    # --- settling -----------------------------------------------------------------------------------

    async def test_a_message_is_settled_once(self) -> None:
        """Whoever comes later is told so, and changes nothing."""
        pending, processing, completed = self.names()
        async with self.gateway() as gateway:
            await gateway.add_message(pending, "hello")
            message, token = await self.take(gateway, pending, processing)
            assert await gateway.move_message(processing, completed, message, lease_token=token) is True
            assert await gateway.move_message(processing, completed, message, lease_token=token) is False
            assert await gateway.remove_message(processing, message, lease_token=token) is False
            await gateway.trim_queue(completed, 1)
            assert await self.is_empty(gateway, pending, processing)

    async def test_a_message_that_is_handed_back_is_handed_out_again(self) -> None:
        """It was not its fault: nothing is counted, and at most once is still to come."""
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            await gateway.add_message(pending, "hello")
            message, token = await self.take(gateway, pending, processing)
            is_returned = await gateway.return_message(processing, pending, message, lease_token=token, counts=False)
            assert is_returned is True, f"return_message() must return True, not {is_returned!r}"
            again, token = await self.take(gateway, pending, processing)
            assert _text(again) == "hello"
            assert await gateway.remove_message(processing, again, lease_token=token) is True

    async def test_a_buried_message_is_not_handed_out_again(self) -> None:
        """Nor does it stay in process."""
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            await gateway.add_message(pending, "hello")
            message, token = await self.take(gateway, pending, processing)
            assert (
                await gateway.dead_letter_message(processing, message, lease_token=token, error=FatalError("never"))
                is True
            )
            assert await gateway.remove_message(processing, message, lease_token=token) is False
            assert await self.is_empty(gateway, pending, processing)

    # --- leases -------------------------------------------------------------------------------------

    async def test_a_lease_is_told_and_has_a_token(self) -> None:
        """Without a token a late consumer would settle the message of another."""
        if not self.has_leases:
            return
        pending, processing, _ = self.names()
        async with self.gateway() as gateway:
            lease_s = gateway.message_visibility_timeout_seconds
            assert lease_s is not None, "a gateway with leases must say how long they last"
            assert lease_s > 0
            await gateway.add_message(pending, "hello")
            found = None
            while found is None:
                found = await gateway.wait_for_message_and_move(pending, processing)
            assert isinstance(found, ClaimedMessage), f"return ClaimedMessage, not {type(found).__name__}"
            assert isinstance(found.lease_token, str), "lease_token must be a str"
            assert found.lease_token, "lease_token must not be empty"
            assert await gateway.remove_message(processing, found.stored_message, lease_token=found.lease_token)

    async def test_a_message_whose_lease_ran_out_is_handed_out_again_and_the_late_holder_is_refused(self) -> None:
        """A stale holder can neither renew, move, return, dead-letter nor remove."""
        if not self.has_leases:
            return
        pending, processing, completed = self.names()
        async with self.gateway(_SHORT_S) as slow, self.gateway(_SHORT_S) as quick:
            await slow.add_message(pending, "hello")
            message, token = await self.take(slow, pending, processing)
            again, new_token = await self.take(quick, pending, processing)
            assert _text(again) == "hello"
            assert token
            assert new_token
            assert new_token != token, "every hand-out has a token of its own"
            assert await slow.renew_message_lease(processing, message, token) is False
            assert await slow.move_message(processing, completed, message, lease_token=token) is False
            assert await quick.renew_message_lease(processing, again, new_token) is True
            assert await quick.remove_message(processing, again, lease_token=new_token) is True

    async def test_a_renewed_lease_keeps_the_message(self) -> None:
        """Nobody else gets it for as long as it is renewed."""
        if not self.has_leases:
            return
        pending, processing, _ = self.names()
        async with self.gateway(_SHORT_S) as gateway, self.gateway(_SHORT_S) as rival:
            await gateway.add_message(pending, "hello")
            message, token = await self.take(gateway, pending, processing)
            assert token
            ends_at = time.monotonic() + 3 * _SHORT_S
            while time.monotonic() < ends_at:
                renewed = await gateway.renew_message_lease(processing, message, token)
                assert renewed is True, f"renew_message_lease() must return True, not {renewed!r}"
                await pause(_SHORT_S / 10)
            assert await gateway.renew_message_lease(processing, message, token) is True
            assert await gateway.remove_message(processing, message, lease_token=token) is True
            assert await self.is_empty(rival, pending, processing)

    # --- as a queue sees it -------------------------------------------------------------------------

    async def test_a_queue_publishes_processes_and_tries_again(self) -> None:
        """The whole way, through the queue."""
        name, _, _ = self.names()
        async with self.gateway() as gateway:
            queue = RedisMessageQueue(
                name, gateway=gateway, deduplication=self.has_deduplication, retry_delay_seconds=0.001,
                enable_completed_queue=True,
            )  # fmt: skip
            assert await queue.publish({"order": 7}) is True
            if self.has_deduplication:
                assert await queue.publish({"order": 7}) is False
            outcomes: list[str] = []
            deadline = time.monotonic() + _PATIENCE_S
            attempts = 1 if gateway.is_at_most_once else 2
            while len(outcomes) < attempts and time.monotonic() < deadline:
                try:
                    async with queue.process_message() as message:
                        if message is not None:
                            outcomes.append(_text(message))
                            _fail_first(outcomes)
                except LookupError:
                    outcomes[-1] += " failed"
            wanted = ['{"order": 7} failed'] if gateway.is_at_most_once else ['{"order": 7} failed', '{"order": 7}']
            assert outcomes == wanted, f"{outcomes} should be {wanted}"


def _text(message: MessageData) -> str:
    return message.decode() if isinstance(message, bytes) else message


def _fail_first(outcomes: list[str]) -> None:
    if len(outcomes) == 1:
        raise LookupError("the first attempt fails")
