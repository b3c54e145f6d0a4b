"""Takes over the messages of dead consumers, and retries failed messages when they are due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from penstock.delivery.group_commands import Redelivery
from penstock.delivery.in_flight import InFlight
from penstock.delivery.reader import MessageReader
from penstock.errors import ConnectionLost
from penstock.events import EventName
from penstock.redis.retry import BUSY, RetryBudget
from penstock.runtime.aio import pause

_STEP = 100  # messages per script call: keeps the server responsive
_PAGE = 1_000  # entries that the slow sweep checks per call
_LONGEST_WAIT_S = 1.0
_PATIENCE = RetryBudget(5.0)  # with a busy server, before the error is raised

Answer = TypeVar("Answer")


class Recovery:
    """Brings messages back to a handler.

    Guarantees: takes no more than there is room for, and none after InFlight is closed; the reader recovers messages of
    a claim whose reply was lost.
    """

    def __init__(self, in_flight: InFlight, reader: MessageReader) -> None:
        self._in_flight, self._context, self._reader = in_flight, in_flight.context, reader
        self._commands, config = in_flight.context.commands, in_flight.context.config
        self._lease_ms, self._room, self._max_passes = config.lease_ms, config.max_prefetch, config.max_claim_passes
        self._cursor = "-"

    async def take_expired(self, at_once: int | None = None) -> int:
        """Take over messages whose lease has expired; return how many.

        With `at_once`, take that many, and more when these have begun: one of them may kill this process as well, and
        those that have not begun would wait for another lease.
        """
        taken, passes = 0, 0
        while self._max_passes is None or passes < self._max_passes:
            if at_once is not None:
                await self._in_flight.wait_for_few_again(at_once)
            limit = min(_STEP, (at_once or self._room) - self._in_flight.waiting_again)
            if limit <= 0:
                break
            passes += 1
            recover = partial(self._commands.recover, self._lease_ms, limit, self._cursor, _PAGE, waits=False)
            self._cursor, found, came = await self._claim(recover, is_recovery=True) or (self._cursor, 0, 0)
            taken += came
            if not found:
                break
        return taken

    async def take_due(self) -> float:
        """Hand out failed messages that are due; return the seconds until the next check."""
        while True:
            limit = min(_STEP, self._room - self._in_flight.waiting_again)
            if limit <= 0:
                return 0.05
            take_due = partial(self._commands.take_due, limit, waits=False)
            wait_ms, found, _ = await self._claim(take_due) or (None, 0, 0)
            if found < limit:
                return _LONGEST_WAIT_S if wait_ms is None else min(_LONGEST_WAIT_S, wait_ms / 1000 + 0.001)

    async def _claim(
        self, step: Callable[[], Awaitable[tuple[Answer, list[Redelivery], list[str]]]], *, is_recovery: bool = False
    ) -> tuple[Answer, int, int] | None:
        # Adds the messages that a step returns; returns its answer, how many it found, and how many of them are new to
        # this process. Waits for a busy server, or a slot that is being moved, without holding `claiming`, which the
        # reader needs, too.
        trial = _PATIENCE.start()
        while True:
            try:
                async with self._reader.claiming:
                    if self._in_flight.is_closed:
                        return None
                    answer, claims, missing = await step()
                    came = self._in_flight.add_again(claims, missing, are_suspects=is_recovery)
                    if is_recovery and came:
                        self._context.tally.count(reclaimed=came)
                        self._context.emit(EventName.RECLAIMED, count=came, ids=[claim.id for claim in claims])
                    return answer, len(claims) + len(missing), came
            except ConnectionLost:
                await self._reader.sweep_soon()
                raise
            except BUSY as error:
                wait_s = trial.pause_after(error)
                if wait_s is None:
                    raise
                await pause(wait_s)

    async def retry_once(self) -> None:
        """Hand out messages that are due, then wait until others may be."""
        wait_s = await self.take_due()
        await self._in_flight.has_parked.wait(wait_s)  # a parked message may be due before the next check
        self._in_flight.has_parked.clear()
