"""Takes over the messages of dead consumers, and hands out failed ones when their time has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.counters import Tally
from penstock.delivery.group_commands import GroupCommands, Redelivery
from penstock.delivery.inbox import Inbox
from penstock.delivery.reader import MessageReader
from penstock.errors import ConnectionLost
from penstock.events import Emit, EventName
from penstock.redis.retry import BUSY, RetryBudget
from penstock.runtime.aio import Event, pause

_STEP = 100  # messages per script call: keeps the server responsive
_PAGE = 1_000  # entries that the slow sweep looks at per call
_LONGEST_WAIT_S = 1.0
_PATIENCE = RetryBudget(5.0)  # with a busy server, before anybody is told

Claimed = TypeVar("Claimed")


class Recovery:
    """Brings messages back to a handler.

    Guarantees: at most as many are taken as have room, and none once the inbox is closed; a claim whose reply was lost
    is swept up by the reader.
    """

    def __init__(
        self, commands: GroupCommands, inbox: Inbox, reader: MessageReader, tally: Tally, emit: Emit, lease_ms: int,
        room: int, max_passes: int | None,
    ) -> None:  # fmt: skip
        self._commands, self._inbox, self._reader, self._tally, self._emit = commands, inbox, reader, tally, emit
        self._lease_ms, self._room, self._max_passes = lease_ms, room, max_passes
        self._cursor = "-"
        self.wake = Event()  # a message was put aside: it may be due before the next look

    async def take_expired(self, at_once: int | None = None) -> int:
        """Take over messages whose lease ran out; return how many.

        With `at_once` so many are taken, and the next ones when these have begun: one of them may kill this process as
        well, and what had not begun would wait for another lease.
        """
        taken, passes = 0, 0
        while self._max_passes is None or passes < self._max_passes:
            if at_once is not None:
                await self._inbox.wait_for_few_again(at_once)
            limit = min(_STEP, (at_once or self._room) - self._inbox.waiting_again)
            if limit <= 0:
                break
            passes += 1
            claims, missing, came = await self._claim(self._recover, limit)
            taken += came
            if not claims and not missing:
                break
        return taken

    def _take_in(self, claims: list[Redelivery], missing: list[str]) -> int:
        self._inbox.suspects.update(claim.id for claim in claims)
        count = self._reader.take_again(claims, missing)
        if count:
            self._tally.count(reclaimed=count)
            self._emit(EventName.RECLAIMED, count=count, ids=[claim.id for claim in claims])
        return count

    async def take_due(self) -> float:
        """Hand out failed messages that are due; return the seconds until the next look."""
        while True:
            limit = min(_STEP, self._room - self._inbox.waiting_again)
            if limit <= 0:
                return 0.05
            claims, missing, wait_ms = await self._claim(self._take_due, limit)
            if len(claims) + len(missing) < limit:
                return _LONGEST_WAIT_S if wait_ms is None else min(_LONGEST_WAIT_S, wait_ms / 1000 + 0.001)

    async def _recover(self, limit: int) -> tuple[list[Redelivery], list[str], int]:
        if self._inbox.is_closed:
            return [], [], 0
        self._cursor, claims, missing = await self._commands.recover(
            self._lease_ms, limit, self._cursor, _PAGE, waits=False
        )  # fmt: skip
        return claims, missing, self._take_in(claims, missing)

    async def _take_due(self, limit: int) -> tuple[list[Redelivery], list[str], int | None]:
        if self._inbox.is_closed:
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
        await self.wake.wait(wait_s)
        self.wake.clear()
