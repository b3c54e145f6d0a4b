"""Delivery: the messages that a worker handles, and how they are settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.config import ConsumerConfig
from penstock.counters import Tally
from penstock.delivery.dead_letters import DeadLetterMover
from penstock.delivery.decoding import Decoder, Rejected
from penstock.delivery.group_commands import GroupCommands, Parking
from penstock.errors import WorkerDied
from penstock.events import Emit, EventName
from penstock.model import StreamMessage
from penstock.policy import Reason, RetryAfter
from penstock.redis.client import StreamClient

if TYPE_CHECKING:
    from penstock.delivery.in_flight import InFlight


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerContext:
    """What the parts of one consumer share."""

    client: StreamClient
    commands: GroupCommands
    config: ConsumerConfig
    decoder: Decoder
    dead_letter_writer: DeadLetterMover
    tally: Tally
    emit: Emit


class Delivery(msgspec.Struct, eq=False):
    """Messages for one call of a handler, from the moment a worker has them until each is settled.

    Their leases are renewed as long as they are in flight; Drain hands back those that a worker does not settle.
    """

    in_flight: InFlight
    messages: list[StreamMessage]
    is_again: bool = False  # delivered before: begin() records another run
    is_last_chance: bool = False
    is_suspect: bool = False  # the last holder of one of them died, perhaps because of it

    async def begin(self) -> bool:
        """Record that the handler begins with messages that were delivered before; return whether any are left to run.

        Dead-letters those that have used up their attempts, and drops those that now belong to another consumer.
        """
        context, admitted = self.in_flight.context, list[StreamMessage]()
        limits = context.config.limits
        for message in self.unsettled():
            if limits.is_exhausted(message.delivery_count, message.attempts):
                await self.dead_letter(message, Reason.MAX_DELIVERIES, WorkerDied.in_attempt(message.attempts))
            else:
                admitted.append(message)
        self.messages = admitted
        if not admitted:
            return False
        answers = await context.commands.begin([self._before_begin(message) for message in admitted])
        self._release_refused(admitted, answers)
        self.messages = [message for message, is_ours in zip(admitted, answers, strict=True) if is_ours]
        for message in self.messages:
            message.delivery_count += 1
            message.attempts += 1
        return bool(self.messages)

    def _before_begin(self, message: StreamMessage) -> tuple[str, int, int]:
        # Only suspects have no neighbours in their last run. That of another message is not recorded until it ends: if
        # the process dies, perhaps because of a neighbour, the message runs again, alone. With a limit of one, nothing
        # runs twice.
        deliveries, attempts = message.delivery_count, message.attempts
        if self.is_last_chance and not self.is_suspect and deliveries and attempts:
            deliveries, attempts = deliveries - 1, attempts - 1
        return message.id, deliveries, attempts

    def unsettled(self) -> list[StreamMessage]:
        """Return the messages that are still in flight: not those that were settled, lost or handed back."""
        found = self.in_flight.find([message.id for message in self.messages])
        return [message for message in self.messages if found.get(message.id) is message]

    def finish(self, messages: list[StreamMessage], ids: list[str]) -> None:
        """Mark messages as finished, so that they are acknowledged."""
        self.in_flight.finish(messages, ids, self.is_again)

    async def retry(self, retries: Sequence[tuple[StreamMessage, RetryAfter]]) -> None:
        """Schedule messages for another run after their delays."""
        if not retries:
            return
        parkings = []
        for message, retry in retries:
            back = 0 if retry.counts else 1
            counts = message.delivery_count - back, message.attempts - back
            parkings.append(Parking(message.id, retry.after_ms, *counts))
        in_flight, messages = self.in_flight, [message for message, _ in retries]
        with in_flight.settling(messages):
            answers = await in_flight.context.commands.park(parkings)
            in_flight.park(messages)
        parked = sum(answers)
        in_flight.context.tally.count(retried=parked)
        in_flight.context.emit(EventName.RETRIED, count=parked)
        self._release_refused(messages, answers)

    async def dead_letter(
        self, message: StreamMessage, reason: Reason, error: BaseException | None, fields: Sequence[bytes] | None = None
    ) -> None:
        """Move a message to the dead letters; if that fails, it stays pending and is retried later."""
        in_flight, context = self.in_flight, self.in_flight.context
        entry = Rejected(message.id, reason, error, message.delivery_count, message.attempts, fields)
        settle = partial(context.commands.dead_letter, message.id)
        try:
            with in_flight.settling([message]):
                written = await context.dead_letter_writer.write(entry, context.commands.consumer, settle, message)
                if written is not None:
                    in_flight.release([message])
        except Exception as refusal:
            await self.retry([(message, RetryAfter(context.dead_letter_writer.refused(refusal, message.id)))])
        else:
            self._release_refused([message], [written is not None])

    def _release_refused(self, messages: Sequence[StreamMessage], answers: Sequence[bool]) -> None:
        # They now belong to another consumer.
        lost = [message for message, is_ours in zip(messages, answers, strict=True) if not is_ours]
        if lost:
            for message in lost:
                message.lease_lost = True
            self.in_flight.release(lost)
            self.in_flight.count_lost([message.id for message in lost])
