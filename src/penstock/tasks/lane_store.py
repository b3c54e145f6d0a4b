"""The lanes of a queue in Redis: which exist, and the scripts that begin and settle their tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from penstock import envelope
from penstock.delivery.group import ConsumerGroup
from penstock.delivery.group_commands import GroupCommands, Parking, id_bounds, settle
from penstock.errors import GroupLost
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.redis.scripts import steps
from penstock.task import Result, Task, encode
from penstock.tasks.entries import place_in_index
from penstock.tasks.handlers import Limits
from penstock.tasks.lanes import Lane, TaskFilter, lanes_in, suffix_of
from penstock.tasks.result_store import stored

_PAGE = 1_000
REFRESH_EVERY_S = 1.0
_RESTORED_MS = 3_600_000
_PERMIT_RETRY_MS = 10_000  # a task waiting for a permit is made due when one is free; this is the fallback
_SETTLED_REPLIES = {"ack": b"acked", "dead_letter": b"dead", "nack": b"dead"}  # one that waits is still pending


class Release(NamedTuple):
    """How its holder settles a task: `what` is ack, nack or dead_letter; extend only renews its lease."""

    what: str
    delay_ms: int = 0
    counts: bool = True
    max_retry: int = 0
    reason: str = ""
    error: str = ""
    text: str = ""
    traceback: str = ""


class TaskDelivery(msgspec.Struct, gc=False, eq=False):
    """A task that this consumer holds: its entry, and the lane that settles it."""

    task: Task
    store: LaneStore
    entry_id: str
    is_again: bool  # it was handed out before, so there are records of that
    deliveries: int = 0  # before this run
    attempts: int = 0  # before this run, in this lane
    has_begun: bool = True  # the run is recorded, or may be; the server counts a first one when it hands the task out
    is_suspect: bool = False  # a worker died while it held the task
    is_settling: bool = False  # a settling command is under way: if the task is no longer pending, it need not be lost

    async def release(self, ending: Release) -> str:
        """Acknowledge the task, give it back, give it up or renew it; return its new state: 'gone' = not ours."""
        with _settling([self] if ending.what != "extend" else []):
            return await self.store.release(
                ending, self.entry_id, self.task.id, self.task.kind, self.store.consumer, self.attempts, self.has_begun
            )

    def is_named_by(self, value: bytes) -> bool:
        """Return whether a value of the index of open tasks names this entry."""
        return place_in_index(value)[0] == self.entry_id

    async def hand_back(self, delay_ms: int = 0) -> None:
        """Give the task back without counting a run."""
        await self.release(Release("nack", delay_ms, counts=False))


@contextmanager
def _settling(deliveries: Sequence[TaskDelivery]) -> Iterator[None]:
    for each in deliveries:
        each.is_settling = True
    try:
        yield
    except BaseException:
        for each in deliveries:
            each.is_settling = False
        raise


class LaneStore:
    """One lane of a queue in Redis, as one consumer sees it."""

    def __init__(self, client: StreamClient, keys: TaskKeys, lane: Lane, group: str, consumer: str) -> None:
        self._client, self._keys, self.lane, self._group, self.consumer = client, keys, lane, group, consumer
        self.streams = keys.tasks(lane.suffix)
        self.stream = self.streams.stream
        self.retries, self.attempts = self.streams.retries(group), self.streams.attempts(group)
        self.suspects = keys.suspects(lane.suffix)
        self.commands = GroupCommands(client, self.streams, group, consumer, dead_letters=None)
        self.group = ConsumerGroup(client, keys.stream_name(lane.suffix), group)
        self._ends = [
            self.stream, self.retries, self.attempts, self.suspects, keys.dead, keys.index, keys.unique, keys.counts,
            keys.results, keys.done, keys.awaited,
        ]  # fmt: skip
        self._cursor = "-"
        self.has_group = False  # as far as we know

    async def finish(self, rows: Sequence[tuple[TaskDelivery, Result]]) -> list[bool]:
        """Store results and acknowledge their tasks; False = no longer ours, or another result was first."""
        bodies, answers = [encode(result) for _, result in rows], list[bool]()
        calls = list(steps([len(body) for body in bodies], len(rows)))
        with _settling([held for held, _ in rows]):
            for call in calls:
                # Of several calls a later one may fail: then all of them are made again.
                answers += await self._finish(rows[call], bodies[call], is_again=len(calls) > 1)
        return answers

    async def _finish(
        self, rows: Sequence[tuple[TaskDelivery, Result]], bodies: Sequence[bytes], *, is_again: bool
    ) -> list[bool]:
        keys, unconfirmed = self._keys, set[str]()
        entry_ids = [held.entry_id for held, _ in rows]
        names = [
            self.stream, self.attempts, self.suspects, keys.results, keys.done, keys.awaited, keys.index, keys.unique,
            keys.counts, *(keys.notice(result.task_id) for _, result in rows),
        ]  # fmt: skip
        was_handed_out = any(held.is_again for held, _ in rows)
        args: list[bytes | str | int] = [self._group, self.consumer, int(was_handed_out), *id_bounds(entry_ids)]
        for (held, result), body in zip(rows, bodies, strict=True):
            args += (held.entry_id, result.task_id, result.kind, result.status.value, body)
        answers = await settle(self._client, "tasks/finish", names, args, entry_ids, unconfirmed)
        if unconfirmed or is_again:
            # An earlier try may have arrived: then this very result is stored.
            answers = [
                1 if not answer and await stored(self._client, keys, result.task_id) == body else answer
                for answer, (_, result), body in zip(answers, rows, bodies, strict=True)
            ]
        return [answer == 1 for answer in answers]

    async def release(
        self, ending: Release, entry_id: str, task_id: str, kind: str, owner: str = "", attempts: int | None = None,
        has_begun: bool = True,
    ) -> str:  # fmt: skip
        """Acknowledge a task, give it back or give it up; return its new state: 'gone' = not held by the owner.

        `attempts` are those before this run, None if they are unknown.
        """
        keys = [*self._ends, self._keys.notice(task_id)]
        args: list[str | int] = [
            self._group, owner, entry_id, ending.what, ending.delay_ms, int(ending.counts) if has_begun else "-",
            ending.max_retry, ending.reason, ending.error, ending.text, _now(), kind, task_id, ending.traceback,
            "" if attempts is None else attempts,
        ]  # fmt: skip
        unconfirmed, answer = set[str](), b"gone"
        # Without a group, the lane has not been read yet, or the group was lost with everything pending in it.
        with suppress(GroupLost):
            answer = await settle(self._client, "tasks/release", keys, args, (entry_id,), unconfirmed)
        if unconfirmed and answer == b"gone":
            answer = _SETTLED_REPLIES.get(ending.what, answer)  # the first try arrived
        if answer == b"dead":
            await self._limit_dead_letters(1)
        return answer.decode()

    async def hand_back(self, deliveries: Sequence[TaskDelivery]) -> int:
        """Give back tasks whose handlers have not begun; return how many of them were ours."""
        with _settling(deliveries):
            parkings = [Parking(held.entry_id, 0, held.deliveries, held.attempts) for held in deliveries]
            return sum(await self.commands.park(parkings))

    async def orphans(self, idle_ms: int, limit: int, max_retry: int) -> tuple[int, list[str], list[str]]:
        """Free tasks of silent consumers.

        Returns how many are due now, the ids of those that are dead, and entries that vanished and stay pending.
        """
        total, gone, vanished, is_more = 0, list[str](), list[str](), True
        while is_more and not vanished and total + len(gone) < limit:
            left = limit - total - len(gone)
            args: list[str | int] = [self._group, idle_ms, left, self._cursor, _PAGE, max_retry, _now()]
            answer = await self._client.run("tasks/orphans", self._ends, args, Repeat.ONCE)
            cursor, freed, dead, is_more, missing = answer
            self._cursor = cursor.decode()
            vanished += (entry_id.decode() for entry_id in missing)
            total += int(freed)
            gone += map(envelope.text, dead)
        if gone:
            await self._limit_dead_letters(len(gone))
        return total, gone, vanished

    async def _limit_dead_letters(self, written: int) -> None:
        # Nothing else goes with a record: the index and the unique text are free since the task died, and its error
        # stays as long as a result does.
        await self._client.dead_letter_retention.after(self._keys.dead, written, self._keys.counts)

    async def move(self, moves: Sequence[tuple[TaskDelivery, Lane]]) -> list[TaskDelivery]:
        """Move tasks of this consumer to other lanes, with the runs that they had before this one.

        Returns those that stay here, because the queue opens no lane for them.
        """
        refused = set[bytes]()
        with _settling([held for held, _ in moves]):
            left = moves
            while left:  # of large tasks a call moves a few
                lanes = list(dict.fromkeys(lane for _, lane in left))
                keys = [
                    self.stream, self.attempts, self.retries, self.suspects, self._keys.index, self._keys.lanes,
                    *(self._keys.tasks(lane.suffix).stream for lane in lanes),
                ]  # fmt: skip
                args: list[str | int] = [self._group, self.consumer, len(lanes), *(lane.name for lane in lanes)]
                for held, lane in left:
                    args += (held.entry_id, held.task.id, lanes.index(lane) + 1, held.task.attempts - 1)
                _, handled, stay = await self._client.run("tasks/move", keys, args, Repeat.IDEMPOTENT)
                left = left[handled:]
                refused.update(stay)
        return [held for held, _ in moves if held.entry_id.encode() in refused]

    async def close(self) -> bool:
        """Remove the lane from the list if it is empty and no worker reads it; return whether it was removed."""
        keys = [
            self._keys.lanes, self.stream, self.retries, self.attempts, self.suspects,
            self.streams.position(self._group),
        ]  # fmt: skip
        args = [self.lane.name, self._group]
        return bool(await self._client.run("tasks/close_lane", keys, args, Repeat.IDEMPOTENT))

    async def has_suspects(self) -> bool:
        """Return whether any task of the lane was with a worker when it died."""
        return bool(await self._client.call(self.stream, "EXISTS", self.suspects))

    async def suspected(self, entry_ids: Sequence[str]) -> set[str]:
        """Return those of the entries that were with a worker when it died."""
        if not entry_ids:
            return set()
        answers = await self._client.call(self.stream, "SMISMEMBER", self.suspects, *entry_ids)
        return {entry_id for entry_id, answer in zip(entry_ids, answers, strict=True) if answer}


class LaneRegistry:
    """All lanes of one queue, each with its store."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, consumer: str) -> None:
        self.client, self.keys, self.group, self.consumer = client, keys, group, consumer
        self._stores: dict[Lane, LaneStore] = {}
        self.is_restored = False  # a group was lost recently: tasks delivered as new may be done already
        self._refreshed_s = float("-inf")

    def store(self, lane: Lane) -> LaneStore:
        """Return the store of a lane."""
        found = self._stores.get(lane)
        return self._stores.setdefault(lane, self._made(lane)) if found is None else found

    def _made(self, lane: Lane) -> LaneStore:
        return LaneStore(self.client, self.keys, lane, self.group, self.consumer)

    async def listed(self) -> list[LaneStore]:
        """Return the store of all lanes, for a read-only inspection: a group may not exist."""
        return [self._stores.get(lane) or self._made(lane) for lane in await self._listed()]

    async def all(self) -> list[LaneStore]:
        """Return the store of all lanes, with groups that exist."""
        if time.monotonic() - self._refreshed_s > REFRESH_EVERY_S:
            await self.refresh()
        return list(self._stores.values())

    async def read_by(self, wanted: TaskFilter) -> list[LaneStore]:
        """Return the store of the lanes that a worker reads."""
        return [store for store in await self.all() if wanted.reads(store.lane)]

    async def _listed(self) -> dict[Lane, None]:
        names = await self.client.call(self.keys.lanes, "SMEMBERS", self.keys.lanes)
        return lanes_in(names)

    async def refresh(self) -> None:
        """Reload the lanes now."""
        lanes = await self._listed()
        for lane in [lane for lane in list(self._stores) if lane not in lanes]:
            self.forget(lane)
        for store in map(self.store, lanes):
            if not store.has_group:
                await self._ensure_group(store)
        restored = self.keys.chore("restored")
        self.is_restored = bool(await self.client.call(restored, "EXISTS", restored))
        self._refreshed_s = time.monotonic()

    async def _ensure_group(self, store: LaneStore) -> None:
        is_new = await store.group.restore() is not None
        if is_new and await self.client.call(self.keys.done, "EXISTS", self.keys.done):
            # A group that was lost begins with the oldest entry, and tasks that were done are still in the stream.
            restored = self.keys.chore("restored")
            command = ("SET", restored, self.consumer, "PX", _RESTORED_MS)
            await self.client.call(restored, *command, repeat=Repeat.IDEMPOTENT)
        store.has_group = True

    def forget(self, lane: Lane) -> None:
        """Read a lane no longer: it is off the list."""
        self._stores.pop(lane, None)

    def forget_groups(self) -> None:
        """Look for the groups again: the server has lost one."""
        for store in list(self._stores.values()):
            store.has_group = False
        self._refreshed_s = float("-inf")

    @contextmanager
    def skipping_lost(self) -> Iterator[None]:
        """Skip a lane whose stream or group was deleted: the next refresh creates it."""
        try:
            yield
        except GroupLost:
            self.forget_groups()


class Admission:
    """The limits of one queue, as one consumer meets them."""

    def __init__(self, lanes: LaneRegistry) -> None:
        self._client, self._keys, self._group = lanes.client, lanes.keys, lanes.group
        self._holding: dict[str, list[str]] = {}  # by kind: the lanes whose tasks had permits when it was asked last

    async def admit(self, held: TaskDelivery, limits: Limits, lease_ms: int) -> bool:
        """Return whether a task may begin; if not, it was put aside and is delivered again later."""
        kind, lane = held.task.kind, held.store.lane.name
        limit_keys: list[str] = []
        limit_args: list[str | int] = []
        for scope, most in limits.concurrency_of(held.task):
            limit_keys += (self._keys.permits(scope), self._keys.queue_for(scope))
            limit_args += ("c", most, 0)
        for scope, rate in limits.rates_of(held.task):
            limit_keys += (self._keys.rate(scope), self._keys.reserved(scope))
            limit_args += ("r", rate.count, round(rate.per_s * 1000))
        names = list(dict.fromkeys([lane, *self._holding.get(kind, ())]))
        while True:
            streams = [self._keys.tasks(suffix_of(name)) for name in names]
            keys = [key for stream in streams for key in (stream.stream, stream.retries(self._group))]
            args: list[str | int] = [
                self._group, held.store.consumer, held.entry_id, lane, held.task.id, len(names), lease_ms,
                _PERMIT_RETRY_MS, held.attempts,
            ]  # fmt: skip
            reply = await self._client.run(
                "tasks/admit",
                [*keys, streams[0].attempts(self._group), *limit_keys],
                [*args, *names, *limit_args],
                Repeat.IDEMPOTENT,
            )
            if not isinstance(reply, list):
                return int(reply) == 1
            self._holding[kind] = [name.decode() for name in reply]
            names = list(dict.fromkeys([*names, *self._holding[kind]]))

    async def give_back(self, task: Task, limits: Limits) -> set[Lane]:
        """Return the permits of a task; return the lanes where another task may begin now."""
        woken = set[Lane]()
        for scope, _ in limits.concurrency_of(task):
            names: list[str] = []
            while True:
                retries = [self._keys.tasks(suffix_of(name)).retries(self._group) for name in names]
                keys = [self._keys.permits(scope), self._keys.queue_for(scope), *retries]
                reply = await self._client.run("tasks/permit", keys, [task.id, *names], Repeat.IDEMPOTENT)
                if not isinstance(reply, bytes):
                    if reply:
                        woken.update(lane for lane in map(Lane.parse, names) if lane is not None)
                    break
                names.append(reply.decode())
        return woken


def _now() -> str:
    return datetime.now(UTC).isoformat()
