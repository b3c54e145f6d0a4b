"""How a run ends: running handlers may finish, and all other messages are handed back."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.delivery.acks import AckSender
from penstock.delivery.group_commands import Parking
from penstock.delivery.in_flight import InFlight
from penstock.delivery.reader import MessageReader
from penstock.errors import PenstockError
from penstock.events import EventName
from penstock.runtime.aio import TaskGroup, shielded
from penstock.shutdown import SignalWatch

logger = logging.getLogger("penstock.delivery")
CLEANUP_TIMEOUT_S = 5.0
_FLUSH_EVERY_S = 0.1


@asynccontextmanager
async def graceful_end(
    shut_down: Callable[[float], Awaitable[None]], grace_s: float, on_signal: Callable[[], None] | None
) -> AsyncIterator[None]:
    """Call `shut_down` with the grace period when the body ends, or without one after an error or a cancellation.

    Until then, SIGTERM and SIGINT call `on_signal`, if it is given.
    """
    unsubscribe = SignalWatch.subscribe(on_signal) if on_signal is not None else None
    try:
        yield
        await shut_down(grace_s)
    except BaseException:  # also a second signal or cancellation while shutting down
        await shielded(2 * CLEANUP_TIMEOUT_S, shut_down, 0.0)
        raise
    finally:
        if unsubscribe is not None:
            unsubscribe()


class Drain:
    """Hands back a consumer's messages without counting an attempt, for another consumer or its next run."""

    def __init__(self, in_flight: InFlight, reader: MessageReader, acks: AckSender) -> None:
        self._in_flight, self._reader, self._acks = in_flight, reader, acks
        self._context, self._commands = in_flight.context, in_flight.context.commands

    async def begin(self) -> None:
        """Stop starting handlers: end the current read, and hand back waiting messages."""
        self._in_flight.close()
        waiting = self._waiting()
        await self.quietly(self._reader.unblock)
        async with self._reader.claiming:  # else a check for due messages that began before would take them back
            await self.quietly(self._park, waiting)

    async def wait_for_handlers(self, workers: TaskGroup, grace_s: float) -> None:
        """Wait for running handlers, at most for the grace period, and acknowledge finished messages meanwhile."""
        deadline = time.monotonic() + grace_s
        while not await workers.join(min(_FLUSH_EVERY_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                await workers.cancel()
                return
            await self.quietly(self._acks.flush)

    async def end(self) -> None:
        """Acknowledge finished messages and hand back all others."""
        await self.quietly(self._acks.flush)
        await self.quietly(self._park, self._unfinished())
        await self.quietly(self._park_stranded)
        await self.quietly(self._acks.flush)  # if Redis was away before: what has finished must not run again

    async def hand_back_all(self) -> None:
        """Hand back or acknowledge all messages in the middle of a pass."""
        await self.quietly(self._park, self._waiting())
        await self.quietly(self._acks.flush)
        await self.quietly(self._park, self._unfinished())
        self._reader.must_sweep()

    async def quietly(self, step: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a step while stopping. Log errors of Redis, which must not hide why we stop; leases expire anyway."""
        try:
            await step(*args)
        except PenstockError as error:
            logger.warning("%s: error while stopping: %s", self._commands.consumer, error)

    def _waiting(self) -> list[Parking]:
        # New messages count as delivered once; for those that wait to run again, the coming run was not counted yet.
        fresh, again = self._in_flight.withdraw_waiting()
        waiting = [Parking(entry_id, 0, 0, 0) for entry_id in fresh]
        return waiting + [Parking(m.id, 0, m.delivery_count, m.attempts) for m in again]

    def _unfinished(self) -> list[Parking]:
        held = self._in_flight.find(self._in_flight.ids())
        counts = {i: (m.delivery_count, m.attempts) if m else (1, 1) for i, m in held.items()}
        return [Parking(i, 0, max(0, counted[0] - 1), max(0, counted[1] - 1)) for i, counted in counts.items()]

    async def _park(self, parkings: list[Parking]) -> None:
        in_flight, is_fenced = self._in_flight, self._commands.is_fenced
        with in_flight.lock:  # else a renewal might miss them
            dropped = in_flight.drop([parking.id for parking in parkings])  # a handler that finishes now is too late
            if dropped and not is_fenced:
                in_flight.unanswered.append(dropped)  # in flight until the server has answered
        if not dropped or is_fenced:
            return
        ours = set(dropped)
        try:
            answers = await self._commands.park([parking for parking in parkings if parking.id in ours])
        finally:
            in_flight.answered(dropped)
        self._context.tally.count(handed_back=sum(answers))
        self._context.emit(EventName.HANDED_BACK, count=sum(answers))

    async def _park_stranded(self) -> None:
        # Messages that were delivered to a read whose reply was lost. If fenced, they belong to the newer process.
        await self._reader.kill_abandoned_read()
        if self._commands.is_fenced or not self._reader.has_read:
            return
        async for claims, _ in self._commands.take_unheld(self._unsettled, is_own_read=True):
            parkings = [Parking(c.id, 0, max(0, c.deliveries - 1), max(0, c.attempts - 1)) for c in claims]
            self._context.tally.count(handed_back=sum(await self._commands.park(parkings)))

    def _unsettled(self) -> set[str]:
        return set(self._in_flight.unsettled_ids())
