"""Takes over the messages of dead consumers, and hands out failed ones when their time has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.delivery.group_commands import Redelivery
from penstock.delivery.in_flight import InFlight
from penstock.delivery.reader import MessageReader
from penstock.errors import ConnectionLost
from penstock.events import EventName
from penstock.redis.retry import BUSY, RetryBudget
from penstock.runtime.aio import pause

_STEP = 100  # messages per script call: keeps the server responsive
_PAGE = 1_000  # entries that the slow sweep looks at per call
_LONGEST_WAIT_S = 1.0
_PATIENCE = RetryBudget(5.0)  # with a busy server, before anybody is told

Claimed = TypeVar("Claimed")


class Recovery:
    """Brings messages back to a handler.

    Guarantees: at most as many are taken as have room, and none once nothing is handed out any more; a claim whose
    reply was lost is swept up by the reader.
    """

    def __init__(self, in_flight: InFlight, reader: MessageReader) -> None:
        self._in_flight, self._context, self._reader = in_flight, in_flight.context, reader
        self._commands, config = in_flight.context.commands, in_flight.context.config
        self._lease_ms, self._room, self._max_passes = config.lease_ms, config.max_prefetch, config.max_claim_passes
        self._cursor = "-"

    async def take_expired(self, at_once: int | None = None) -> int:
        """Take over messages whose lease ran out; return how many.

        With `at_once` so many are taken, and the next ones when these have begun: one of them may kill this process as
        well, and what had not begun would wait for another lease.
        """
        taken, passes = 0, 0
        while self._max_passes is None or passes < self._max_passes:
            if at_once is not None:
                await self._in_flight.wait_for_few_again(at_once)
            limit = min(_STEP, (at_once or self._room) - self._in_flight.waiting_again)
            if limit <= 0:
                break
            passes += 1
            claims, missing, came = await self._claim(self._recover, limit)
            taken += came
            if not claims and not missing:
                break
        return taken

    def _take_in(self, claims: list[Redelivery], missing: list[str]) -> int:
        self._in_flight.suspects.update(claim.id for claim in claims)
        count = self._reader.take_again(claims, missing)
        if count:
            self._context.tally.count(reclaimed=count)
            self._context.emit(EventName.RECLAIMED, count=count, ids=[claim.id for claim in claims])
        return count

    async def take_due(self) -> float:
        """Hand out failed messages that are due; return the seconds until the next look."""
        while True:
            limit = min(_STEP, self._room - self._in_flight.waiting_again)
            if limit <= 0:
                return 0.05
            claims, missing, wait_ms = await self._claim(self._take_due, limit)
            if len(claims) + len(missing) < limit:
                return _LONGEST_WAIT_S if wait_ms is None else min(_LONGEST_WAIT_S, wait_ms / 1000 + 0.001)

    async def _recover(self, limit: int) -> tuple[list[Redelivery], list[str], int]:
        if self._in_flight.is_closed:
            return [], [], 0
        self._cursor, claims, missing = await self._commands.recover(
            self._lease_ms, limit, self._cursor, _PAGE, waits=False
        )  # fmt: skip
        return claims, missing, self._take_in(claims, missing)

    async def _take_due(self, limit: int) -> tuple[list[Redelivery], list[str], int | None]:
        if self._in_flight.is_closed:
            return [], [], None
        wait_ms, claims, missing = await self._commands.take_due(limit, waits=False)
        self._reader.take_again(claims, missing)
        return claims, missing, wait_ms

    async def _claim(self, step: Callable[[int], Awaitable[Claimed]], limit: int) -> Claimed:
        # A busy server, or a slot that is on the move, is waited for with `claiming` free: the reader needs it too.
        trial = _PATIENCE.start()
        while True:
            try:
                async with self._reader.claiming:
                    return await step(limit)
            except ConnectionLost:
                await self._reader.sweep_soon()
                raise
            except BUSY as error:
                wait_s = trial.pause_after(error)
                if wait_s is None:
                    raise
                await pause(wait_s)

    async def retry_once(self) -> None:
        """Hand out what is due, then wait until something may be due again."""
        wait_s = await self.take_due()
        await self._in_flight.has_parked.wait(wait_s)  # a message that was put aside may be due before the next look
        self._in_flight.has_parked.clear()
