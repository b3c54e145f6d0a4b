"""Gives up entries that no handler gets: they are not tasks, belong to another task, or have vanished."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from penstock import envelope
from penstock.delivery.dead_letters import DeadLetterBackoff, log_dead_letter
from penstock.delivery.decoding import Rejected
from penstock.delivery.group_commands import MAX_IDS, Redelivery
from penstock.errors import DecodeError, name_of, text_of
from penstock.events import Emit, EventName
from penstock.keys import TaskKeys
from penstock.policy import Reason, unreadable
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.tasks.entries import Malformed
from penstock.tasks.lane_store import LaneStore, Release, TaskDelivery
from penstock.tasks.lanes import Lane

logger = logging.getLogger("penstock.tasks")
Park: TypeAlias = Callable[[int], Awaitable[None]]  # puts an entry aside for so many ms
_SCANNED = 1_000  # open tasks per script call
_CHECKED = 250  # the same, when their entries are searched for


class UndeliverableEntries:
    """Dead-letters entries of one queue that no handler gets; logs, emits and counts them.

    Guarantees: an entry whose record cannot be written stays pending and is tried again.
    """

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, emit: Emit) -> None:
        self._client, self._keys, self._group, self._emit = client, keys, group, emit
        self._backoff = DeadLetterBackoff(logger)
        self._cursor = b"0"  # of the open tasks, those after it are looked at next
        self.count = 0  # dead-lettered by this object

    async def malformed(self, store: LaneStore, claim: Redelivery, error: Malformed, park: Park) -> None:
        """Give up an entry that cannot be read as a task."""
        cause = error.__cause__ or error
        reason = unreadable(error.__cause__)
        ending = Release("dead_letter", reason=reason, error=name_of(cause), text=text_of(error))
        write = partial(store.release, ending, claim.id, error.task_id, error.kind, store.consumer)
        await self._give_up(store, Rejected(claim.id, reason, cause, claim.deliveries, claim.attempts), write, park)

    async def invalid(self, held: TaskDelivery, why: str) -> None:
        """Give up a task that must not run."""
        entry = Rejected(held.entry_id, Reason.INVALID, DecodeError(why), held.deliveries, held.attempts)
        write = partial(held.release, Release("dead_letter", reason=Reason.INVALID, text=why))
        await self._give_up(held.store, entry, write, held.hand_back, held.task.id)

    async def vanished(self, store: LaneStore, entry_ids: Sequence[str]) -> None:
        """Give up pending tasks whose entries were trimmed or deleted: each gets an error as its result."""
        for start in range(0, len(entry_ids), MAX_IDS):
            page = entry_ids[start : start + MAX_IDS]
            tasks = await self._tasks_of(store.lane, page)
            for entry_id in page:
                await self._missing(store, entry_id, tasks.get(entry_id, ""))

    async def give_up_vanished(self, stores: Sequence[LaneStore]) -> None:
        """Give up tasks whose entries vanished before any worker got them: of the open tasks, look at the next few."""
        by_lane = {store.lane.name: store for store in stores}
        args: list[bytes | str | int] = [self._cursor, _CHECKED, self._group, *by_lane]
        keys = [self._keys.index, *(store.stream for store in stores)]
        self._cursor, found = await self._client.run("tasks/find_vanished", keys, args, Repeat.IDEMPOTENT)
        for lane, entry_id, task_id in zip(found[::3], found[1::3], found[2::3], strict=True):
            await self._missing(by_lane[lane.decode()], entry_id.decode(), envelope.text(task_id))

    async def _missing(self, store: LaneStore, entry_id: str, task_id: str) -> None:
        write = partial(store.release, Release("dead_letter", reason=Reason.MISSING), entry_id, task_id, "")
        await self._give_up(store, Rejected(entry_id, Reason.MISSING, None, 0, 0), write, None, task_id)

    async def _tasks_of(self, lane: Lane, entry_ids: Sequence[str]) -> dict[str, str]:
        cursor, found = b"0", dict[str, str]()
        while True:
            args: list[bytes | str | int] = [cursor, _SCANNED, *(f"{entry_id} {lane.name}" for entry_id in entry_ids)]
            cursor, pairs = await self._client.run("tasks/find_entries", [self._keys.index], args, Repeat.IDEMPOTENT)
            for number, task_id in zip(pairs[::2], pairs[1::2], strict=True):
                found[entry_ids[number - 1]] = envelope.text(task_id)
            if cursor == b"0" or len(found) == len(entry_ids):
                return found

    async def _give_up(
        self, store: LaneStore, entry: Rejected, write: Callable[[], Awaitable[str]], park: Park | None,
        task_id: str = "",
    ) -> None:  # fmt: skip
        try:
            answer = await write()
        except Exception as refusal:
            delay_ms = self._backoff.delay_ms(refusal, store.stream, entry.id)
            if park is not None:  # else its lease ends, and it is an orphan
                await park(delay_ms)
            return
        self._backoff.forget(entry.id)
        if answer != "dead":  # another worker was first
            return
        self.count += 1
        what = f"task {task_id} in entry {entry.id}" if task_id else f"entry {entry.id}"
        log_dead_letter(logger, store.stream, self._group, entry, entry.reason, what)
        error = "" if entry.error is None else text_of(entry.error)
        self._emit(EventName.DEAD_LETTERED, id=task_id or entry.id, reason=entry.reason.value, error=error)
