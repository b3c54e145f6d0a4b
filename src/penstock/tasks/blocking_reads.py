"""Reads that wait at the server for tasks until something else is due, and what they leave behind when they break."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock import envelope
from penstock.delivery.group_commands import Redelivery
from penstock.errors import PenstockError
from penstock.redis.aio import Command, Connection, Reply
from penstock.redis.blocking_read import connect, wake
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
        self.abandoned: set[Connection] = set()  # whose last read may be on its way still
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
    """Sends reads that block, each on a connection of its own that is kept for the next ones.

    Guarantees: a read is sent once. The server closes the connection of one that was cancelled or timed out before
    anybody looks what it handed out. Without `lost` reads hand out nothing, and cannot be woken.
    """

    def __init__(self, client: StreamClient, key: str, lost: LostReads | None = None) -> None:
        self._client, self._key, self._lost = client, key, lost
        self._idle: list[Connection] = []
        self._blocked: dict[Connection, float] = {}  # reads under way, and until when
        self._due_s: dict[Lane | None, float] = {}  # when a waiting task of a lane is due; None = a scheduled one

    async def read(self, command: Command, timeout_s: float) -> Reply:
        """Send a read that the server answers within the time."""
        connection = None
        try:
            connection = await self._open()
            self._blocked[connection] = time.monotonic() + timeout_s
            reply = await connection.call(*command, timeout_s=timeout_s + _REPLY_MARGIN_S)
        except BaseException as error:
            if connection is not None:
                is_answered = isinstance(error, PenstockError) and not connection.has_timed_out  # or it has hung up
                if self._lost is not None and not is_answered:
                    self._lost.abandoned.add(connection)
                connection.abort()
            if isinstance(error, PenstockError):
                await self._client.leave(connection, error)
            raise
        finally:
            if connection is not None:
                self._blocked.pop(connection, None)
        self._idle.append(connection)
        return reply

    async def _open(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return await connect(self._client, self._key)

    async def kill_abandoned(self) -> None:
        """End reads that were given up: only then tells a look what they have handed out."""
        while self._lost is not None and self._lost.abandoned:
            await self._client.kill_abandoned(self._key, self._lost.abandoned.pop())

    async def wake(self) -> None:
        """Let all reads return now. A hint: a read that is not woken ends by itself a moment later."""
        for connection in list(self._blocked):
            await wake(self._client, self._key, connection)

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
