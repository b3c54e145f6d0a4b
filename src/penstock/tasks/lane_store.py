"""The store of one lane: the commands of its stream, and the scripts by which its tasks end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.delivery.group import ConsumerGroup
from penstock.delivery.group_commands import GroupCommands, id_bounds
from penstock.delivery.settle import settle
from penstock.errors import GroupLost
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.tasks.lanes import Lane
from penstock.tasks.tasks_in_flight import TaskInFlight

_PAGE = 1_000
_HEARD = {"ack": b"acked", "dead_letter": b"dead"}


class Outcome(NamedTuple):
    """A result on its way to the store, with the entry that it settles."""

    entry_id: str
    task_id: str
    kind: str
    status: str
    raw: bytes


class LaneStore:
    """One lane of a queue in Redis, as one consumer sees it."""

    def __init__(self, client: StreamClient, keys: TaskKeys, lane: Lane, group: str, consumer: str) -> None:
        self._client, self._keys, self.lane, self._group, self._consumer = client, keys, lane, group, consumer
        self.streams = keys.tasks(lane.suffix)
        self.stream = self.streams.stream
        self.retries, self.attempts = self.streams.retries(group), self.streams.attempts(group)
        self.suspects = keys.suspects(lane.suffix)
        self.commands = GroupCommands(client, self.streams, group, consumer, keys.dead)
        self.group = ConsumerGroup(client, keys.stream_name(lane.suffix), group)
        self._ends = [
            self.stream, self.retries, self.attempts, self.suspects, keys.dead, keys.index, keys.unique, keys.counts,
            keys.results, keys.done, keys.awaited,
        ]  # fmt: skip
        self._cursor = "-"

    async def finish(self, outcomes: Sequence[Outcome], is_again: bool) -> list[int]:
        """Store results and acknowledge their tasks; 1 = stored, 2 = another was first, 0 = not ours any more."""
        entry_ids, unheard = [outcome.entry_id for outcome in outcomes], set[str]()
        first, last = id_bounds(entry_ids)
        keys = self._keys
        names = [
            self.stream, self.attempts, self.suspects, keys.results, keys.done, keys.awaited, keys.index, keys.unique,
            keys.counts, *(keys.notice(outcome.task_id) for outcome in outcomes),
        ]  # fmt: skip
        args: list[bytes | str | int] = [self._group, self._consumer, int(is_again), first, last]
        for outcome in outcomes:
            args += (outcome.entry_id, outcome.task_id, outcome.kind, outcome.status, outcome.raw)
        answers = [int(answer) for answer in await settle(self._client, "task_finish", names, args, entry_ids, unheard)]
        if unheard:
            # The first try may have been heard: then this very result is stored.
            answers = [
                1 if not answer and await self.stored(outcome.task_id) == outcome.raw else answer
                for answer, outcome in zip(answers, outcomes, strict=True)
            ]
        return answers

    async def stored(self, task_id: str, wait_ms: int = 0) -> bytes | None:
        """Return the result of a task as it is stored; take note that somebody waits for it for so long."""
        keys = [self._keys.results, self._keys.done, self._keys.awaited]
        found: bytes | None = await self._client.run("task_await", keys, [task_id, wait_ms], Repeat.IDEMPOTENT)
        return found

    async def release(
        self,
        what: str,
        entry_id: str,
        task_id: str,
        kind: str,
        *,
        owner: str = "",
        delay_ms: int = 0,
        counts: bool = True,
        max_retry: int = 0,
        reason: str = "",
        error: str = "",
        text: str = "",
        traceback: str = "",
    ) -> str:
        """Acknowledge a task, give it back or give it up; return what became of it: 'gone' = not in that hand."""
        keys = [*self._ends, self._keys.notice(task_id)]
        args: list[str | int] = [
            self._group, owner, entry_id, what, delay_ms, int(counts), max_retry, reason, error, text, _now(), kind,
            task_id, traceback,
        ]  # fmt: skip
        unheard, answer = set[str](), b"gone"
        # Without a group nobody has read the lane yet, or it and what was in hand went together.
        with suppress(GroupLost):
            answer = await settle(self._client, "task_release", keys, args, (entry_id,), unheard)
        if unheard and answer == b"gone":
            answer = _HEARD.get(what, answer)  # the first try was heard
        if answer == b"dead":
            await self._limit_dead_letters(1)
        return answer.decode()

    async def give_back(self, held: TaskInFlight, delay_ms: int = 0) -> None:
        """Give a task of this consumer back without counting a run."""
        ids = (held.entry_id, held.task.id, held.task.kind)
        await self.release("nack", *ids, owner=self._consumer, delay_ms=delay_ms, counts=False)

    async def orphans(self, idle_ms: int, limit: int, max_retry: int) -> tuple[int, list[str]]:
        """Free tasks of silent consumers; return how many are due now, and the ids of those that are dead."""
        total, gone, is_more = 0, list[str](), True
        while is_more and total + len(gone) < limit:
            left = limit - total - len(gone)
            args: list[str | int] = [self._group, idle_ms, left, self._cursor, _PAGE, max_retry, _now()]
            cursor, freed, dead, is_more = await self._client.run("task_orphans", self._ends, args, Repeat.ONCE)
            self._cursor = cursor.decode()
            total += int(freed)
            gone += [task_id.decode() for task_id in dead]
        if gone:
            await self._limit_dead_letters(len(gone))
        return total, gone

    async def _limit_dead_letters(self, written: int) -> None:
        # Nothing else goes with a record: the index and the unique text are free since the task died, and its error
        # stays as long as a result does.
        await self._client.dead_letter_retention.after(self._keys.dead, written, self._keys.counts)

    async def move(self, moves: Sequence[tuple[str, str, Lane, int]]) -> int:
        """Move tasks (entry, id, lane, runs before) of this consumer to other lanes."""
        lanes = list(dict.fromkeys(lane for _, _, lane, _ in moves))
        keys = [
            self.stream, self.attempts, self.retries, self.suspects, self._keys.index, self._keys.lanes,
            *(self._keys.tasks(lane.suffix).stream for lane in lanes),
        ]  # fmt: skip
        args: list[str | int] = [self._group, self._consumer, len(lanes), *(lane.name for lane in lanes)]
        for entry_id, task_id, lane, runs in moves:
            args += (entry_id, task_id, lanes.index(lane) + 1, runs)
        return int(await self._client.run("task_move", keys, args, Repeat.IDEMPOTENT))

    async def close(self) -> bool:
        """Take the lane off the list if nothing is in it and nobody reads it; tell whether it went."""
        keys = [
            self._keys.lanes, self.stream, self.retries, self.attempts, self.suspects,
            self.streams.position(self._group),
        ]  # fmt: skip
        args = [self.lane.name, self._group]
        return bool(await self._client.run("task_close_lane", keys, args, Repeat.IDEMPOTENT))

    async def has_suspects(self) -> bool:
        """Return whether any task of the lane was with a worker when it died."""
        return bool(await self._client.call(self.stream, "EXISTS", self.suspects))

    async def suspected(self, entry_ids: Sequence[str]) -> set[str]:
        """Return those of the entries that were with a worker when it died."""
        if not entry_ids:
            return set()
        answers = await self._client.call(self.stream, "SMISMEMBER", self.suspects, *entry_ids)
        return {entry_id for entry_id, answer in zip(entry_ids, answers, strict=True) if answer}


def _now() -> str:
    return datetime.now(UTC).isoformat()
