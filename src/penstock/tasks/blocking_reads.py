"""Reads that wait at the server for tasks until something else is due, and what they leave behind when they break."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock import envelope
from penstock.delivery.group_commands import Redelivery
from penstock.errors import PenstockError
from penstock.redis.aio import Command, Reply
from penstock.redis.blocking_read import BlockingRead
from penstock.redis.client import StreamClient
from penstock.tasks.entries import runs_elsewhere
from penstock.tasks.lanes import Lane
from penstock.tasks.tasks_in_flight import TaskInFlight, TasksInFlight

_REPLY_MARGIN_S = 2.0


class LostReads:
    """Remembers what may be pending with a consumer though nobody holds it: whether to sweep, and what to know then."""

    def __init__(self, held: TasksInFlight) -> None:
        self._held = held
        self.must_sweep = False
        self._under_way: dict[int, list[TaskInFlight]] = {}  # by the identity of the list
        self._not_run: dict[str, int] = {}  # attempts before a run that may be recorded and never was

    @contextmanager
    def claiming(self) -> Iterator[list[TaskInFlight]]:
        """Collect tasks from the moment in which the server may hand them out until the caller has them.

        If something comes in between, nobody holds them: no heartbeat renews them, and the next sweep finds them.
        """
        found: list[TaskInFlight] = []
        self._under_way[id(found)] = found
        try:
            yield found
        except BaseException:
            self.must_sweep = True
            self.never_ran(found)
            for held in found:
                self._held.release(held)
            raise
        finally:
            del self._under_way[id(found)]

    @property
    def can_sweep(self) -> bool:
        """Whether a sweep is needed, and nothing is under way that it would mistake for lost."""
        return self.must_sweep and not self._under_way

    def never_ran(self, tasks: Iterable[TaskInFlight]) -> None:
        """Take note that these tasks may be recorded as begun, and were not."""
        self._not_run.update({held.entry_id: held.task.attempts - 1 for held in tasks if held.is_again})

    def as_before(self, claims: Sequence[Redelivery]) -> list[Redelivery]:
        """Return claims with the attempts that really were."""
        found = []
        for claim in claims:
            runs = self._not_run.pop(claim.id, None)
            # Those of another lane are written in the entry, and counted when it is read.
            elsewhere = runs_elsewhere(envelope.as_mapping(claim.fields)) or 0
            found.append(claim if runs is None else replace(claim, attempts=runs - elsewhere))
        return found


class BlockingReads:
    """Any number of reads that block at the same time; their connections are kept for the next ones."""

    def __init__(self, client: StreamClient, key: str) -> None:
        self._client, self._key = client, key
        self._idle: list[BlockingRead] = []
        self._broken: list[BlockingRead] = []  # whose last read may be on its way still
        self._blocked: dict[BlockingRead, float] = {}  # reads under way, and until when
        self._due_s: dict[Lane | None, float] = {}  # when a waiting task of a lane is due; None = a scheduled one

    async def read(self, command: Command, timeout_s: float, hands_out: bool = True) -> Reply:
        """Send a read, once, that the server answers within the time; `hands_out` tells whether it takes something."""
        try:
            read = self._idle.pop()
        except IndexError:
            read = BlockingRead(self._client, self._key)
        self._blocked[read] = time.monotonic() + timeout_s
        try:
            reply = await read.call(command, timeout_s + _REPLY_MARGIN_S)
        except BaseException as error:
            if hands_out:
                self._broken.append(read)
            if isinstance(error, PenstockError):
                await self._client.leave(read.connection, error)
            raise
        finally:
            del self._blocked[read]
        self._idle.append(read)
        return reply

    async def kill_abandoned(self) -> None:
        """End reads that were given up: only then tells a look what they have handed out."""
        while self._broken:
            await self._broken.pop().kill_abandoned()

    async def wake(self) -> None:
        """Let all reads return now. A hint: a read that is not woken ends by itself a moment later."""
        for read in list(self._blocked):
            await read.wake()

    # --- what is due --------------------------------------------------------------------------------

    def note_due(self, lane: Lane | None, wait_ms: int) -> None:
        """Take note of when the next waiting task of a lane is due, as the server says; -1 = there is none."""
        if wait_ms < 0:
            self._due_s.pop(lane, None)
        else:
            self._due_s[lane] = time.monotonic() + wait_ms / 1000

    async def due_soon(self, lane: Lane | None, delay_s: float) -> None:
        """Take note that a task will be due, and let no read wait longer than that."""
        due_s = time.monotonic() + delay_s
        self._due_s[lane] = min(self._due_s.get(lane, float("inf")), due_s)
        if any(until_s > due_s for until_s in list(self._blocked.values())):
            await self.wake()

    def is_due(self, lane: Lane | None) -> bool:
        """Return whether a waiting task of the lane is due; None = a scheduled one."""
        return self._due_s.get(lane, float("inf")) <= time.monotonic()

    def until_due_s(self) -> float:
        """Return for how long nothing is due."""
        return max(0.001, min(self._due_s.values(), default=float("inf")) - time.monotonic())

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().close()
