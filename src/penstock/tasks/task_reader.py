"""Takes tasks out of the lanes: new ones, those whose retry is due, those whose time has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from penstock import envelope
from penstock.delivery.dead_letters import DeadLetterBackoff
from penstock.delivery.group_commands import MAX_IDS, Parking, Redelivery
from penstock.errors import NOT_OF_ONE_MESSAGE, ConnectionLost, GroupLost, name_of, text_of
from penstock.keys import TaskKeys
from penstock.policy import Reason, unreadable
from penstock.redis.aio import Command
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.runtime.aio import pause
from penstock.serializers import PayloadLimits
from penstock.task import Task
from penstock.tasks.blocking_reads import BlockingReads, LostReads
from penstock.tasks.entries import Malformed, TaskEntries
from penstock.tasks.lane_store import LOOK_EVERY_S, LaneRegistry, LaneStore, Release
from penstock.tasks.lanes import Lane, TaskFilter, portions, reading_order, suffix_of
from penstock.tasks.tasks_in_flight import TaskInFlight, TasksInFlight

logger = logging.getLogger("penstock.tasks")
_PROMOTED = 100  # scheduled tasks per script call
_APART_S = 0.1  # how soon a task that must run alone is looked at again
_SUSPECTS = 16  # taken at once: should one kill the worker, all that it has wait for another lease
_SECOND_S = 1.0  # how soon a second entry of a task in hand is looked at again
_DRAIN_S, _DRAIN_SHARE = 5.0, 7  # for so long nothing else is taken so that it can, and of all time one part in so many
_TRIES = 3
_PASSING_S = 30.0  # for so long a pop passes over what it cannot do before it says that there is nothing


class TaskReader:
    """Hands out tasks to one consumer.

    Guarantees: a read is sent once. Whatever a broken connection or a cancelled pop may have left pending with this
    consumer is swept up before a later read, or handed back at the end, and no attempt is counted for it.
    """

    def __init__(
        self, client: StreamClient, keys: TaskKeys, lanes: LaneRegistry, held: TasksInFlight, group: str, consumer: str,
        max_retry: int, limits: PayloadLimits,
    ) -> None:  # fmt: skip
        self._client, self._keys, self._lanes, self._held = client, keys, lanes, held
        self._group, self._consumer, self._max_retry = group, consumer, max_retry
        self._entries = TaskEntries(keys, client.protection, limits)
        self._turn = self._wakes = 0
        self._lost = LostReads(held)
        self._reads = BlockingReads(client, keys.index)
        self._alone: TaskInFlight | None = None  # a task in hand that must have no neighbours
        self._drains_for: Lane | None = None  # where a task waits until nothing else is in hand
        self._drain_began_s = self._next_drain_s = 0.0
        self._dead_letter_backoff = DeadLetterBackoff(logger)
        self._due_lanes: list[str] = []  # for which scheduled tasks were due lately

    # --- popping ------------------------------------------------------------------------------------

    async def pop(self, count: int, timeout_s: float | None, wanted: TaskFilter, keeps_apart: bool) -> list[Task]:
        """Take up to so many tasks; wait for the first one until the time is over (None = do not wait)."""
        deadline = time.monotonic() + (timeout_s or 0)
        while True:
            must_wait = keeps_apart and self._keeps_others_waiting()
            found = [] if must_wait else await self._persist(count, wanted, keeps_apart)
            left_s = deadline - time.monotonic()
            if found or timeout_s is None or left_s <= 0:
                return [held.task for held in found]
            if must_wait:
                await pause(min(left_s, _APART_S / 10))
                continue
            found = await self._wait(min(left_s, self._reads.until_due_s(), LOOK_EVERY_S), count, wanted)
            if found:
                return [held.task for held in found]

    def _keeps_others_waiting(self) -> bool:
        # A task that must run alone is in hand, or waits until nothing else is.
        if self._alone is not None and self._held.get(self._alone.task.id) is self._alone:
            return True
        self._alone = None
        if self._drains_for is not None and time.monotonic() - self._drain_began_s > _DRAIN_S:
            self._end_drain()
        # Also in the moment between the end of the others and its turn: what is read then would be its neighbour.
        return self._drains_for is not None and (len(self._held) > 0 or not self._reads.is_due(self._drains_for))

    async def _persist(self, count: int, wanted: TaskFilter, keeps_apart: bool) -> list[TaskInFlight]:
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._take(min(count, MAX_IDS), wanted, keeps_apart)
            except (GroupLost, ConnectionLost) as error:  # what a lost reply has handed out is swept up by the next try
                if isinstance(error, GroupLost):
                    self._lanes.forget_groups()
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _take(self, count: int, wanted: TaskFilter, keeps_apart: bool) -> list[TaskInFlight]:
        lanes = await self._lanes.read_by(wanted)
        can_sweep = self._lost.can_sweep
        with self._lost.claiming() as found:
            if can_sweep:
                found.extend(await self._sweep(keeps_apart))
            looks, wakes, until_s = 0, self._wakes, time.monotonic() + _PASSING_S
            while True:
                looks += 1
                if self._reads.is_due(None):
                    await self._promote()
                for store in lanes:
                    if self._reads.is_due(store.lane) and len(found) < count:
                        found.extend(await self._take_due(store, count - len(found), keeps_apart))
                is_passing = False  # tasks that are not for this worker, or no tasks at all
                if self._alone is None and len(found) < count:
                    fresh, is_passing = await self._read(lanes, count - len(found))
                    found.extend(fresh)
                found[:] = await self._sorted_out(found, wanted)
                if found:
                    break
                if is_passing and self._wakes == wakes and time.monotonic() < until_s:
                    continue  # what it can do may be behind them
                if looks > 1 or not any(map(self._reads.is_due, (None, *(store.lane for store in lanes)))):
                    break
        return found

    async def _read(self, lanes: Sequence[LaneStore], count: int) -> tuple[list[TaskInFlight], bool]:
        self._turn += 1
        by_lane = {store.lane: store for store in lanes}
        ordered = [by_lane[lane] for lane in reading_order(by_lane, self._turn)]
        keys = [self._keys.due, *(key for store in ordered for key in (store.stream, store.retries))]
        args: list[str | int] = [self._group, self._consumer, count]
        args += portions([store.lane for store in ordered], count)
        with self._lost.claiming() as found:
            wait_ms, waits, rows = await self._client.run("tasks/take", keys, args, Repeat.ONCE)
            self._reads.note_due(None, wait_ms)
            for store, lane_wait_ms in zip(ordered, waits, strict=True):
                self._reads.note_due(store.lane, lane_wait_ms)
            for number, entries in rows:
                found.extend(await self._accept_fresh(ordered[number - 1], entries))
        return found, bool(rows)

    async def _accept_fresh(self, store: LaneStore, entries: Sequence[tuple[bytes, list[bytes]]]) -> list[TaskInFlight]:
        found, foreign, lane = list[TaskInFlight](), list[TaskInFlight](), store.lane
        if self._lanes.is_restored:
            entries = await self._without_settled(store, entries)
        for raw_id, fields in entries:
            try:
                found.append(TaskInFlight(self._entries.read(fields, 1), lane, raw_id.decode(), False))
            except Malformed as error:
                await self._refuse(store, Redelivery(raw_id.decode(), 0, 0, fields), error)
                continue
            if len(fields) != 6 or fields[2] != b"task_id":  # enqueue() writes three fields
                foreign.append(found[-1])
        found = await self._without_copies(store, found, foreign)
        self._held.add(found)
        return found

    async def _without_copies(
        self, store: LaneStore, tasks: list[TaskInFlight], foreign: Sequence[TaskInFlight] = ()
    ) -> list[TaskInFlight]:
        # Anybody may write an entry with the id of a task. To ask the index for every entry would cost every task, so
        # only those are asked for whose task is in our hands already, or that enqueue() did not write as they are.
        second = self._held.second_entries(tasks)
        asked = [*second, *(held for held in foreign if held not in second)]
        if not asked:
            return tasks
        ids, index, done = [held.task.id for held in asked], self._keys.index, self._keys.done
        known = await self._client.call(index, "HMGET", index, *ids)
        ended = await self._client.call(done, "HMGET", done, *ids)  # after the index: a task that ends is in either
        gone = set[str]()
        for held, value, result in zip(asked, known, ended, strict=True):
            if value is not None and value.partition(b" ")[0] != held.entry_id.encode():
                await self._dead_letter_copy(store, held, f"is open, in entry {envelope.text(value)}")
            elif value is None and result is not None:
                await self._dead_letter_copy(store, held, "has ended, it has a result")
            elif held in second:
                # Nobody knows another entry of the task: it waits until the one in our hands has ended.
                await store.give_back(held, int(_SECOND_S * 1000))
                await self.due_soon(store.lane, _SECOND_S)
            else:
                continue
            gone.add(held.entry_id)
        return [held for held in tasks if held.entry_id not in gone]

    async def _dead_letter_copy(self, store: LaneStore, held: TaskInFlight, why: str) -> None:
        ending = Release("dead_letter", reason=Reason.INVALID, text=f"task {held.task.id} {why}")
        await store.release(ending, held.entry_id, held.task.id, held.task.kind, self._consumer)

    async def _without_settled(
        self, store: LaneStore, entries: Sequence[tuple[bytes, list[bytes]]]
    ) -> Sequence[tuple[bytes, list[bytes]]]:
        # A group that was lost and created again hands out the history of the stream: the index tells what is open.
        named = [(row[0], row[1][3]) for row in entries if len(row[1]) >= 4 and row[1][2] == b"task_id"]
        if not named:
            return entries
        known = await self._client.call(self._keys.index, "HMGET", self._keys.index, *(name for _, name in named))
        settled = {
            entry_id
            for (entry_id, _), value in zip(named, known, strict=True)
            if value is None or value.partition(b" ")[0] != entry_id
        }
        if settled:
            command: Command = ("XACK", store.stream, self._group, *settled)
            await self._client.call(store.stream, *command, repeat=Repeat.IDEMPOTENT)
        return [row for row in entries if row[0] not in settled]

    async def _refuse(self, store: LaneStore, claim: Redelivery, error: Malformed) -> None:
        reason, name = unreadable(error.__cause__), name_of(error.__cause__ or error)
        ending = Release("dead_letter", reason=reason, error=name, text=text_of(error))
        try:
            await store.release(ending, claim.id, error.task_id, error.kind, self._consumer)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception:
            await self._park(store, [claim], self._dead_letter_backoff.note(store.stream, claim.id))
        else:
            self._dead_letter_backoff.forget(claim.id)

    # --- tasks that were handed out before ----------------------------------------------------------

    async def _take_due(self, store: LaneStore, limit: int, keeps_apart: bool) -> list[TaskInFlight]:
        if keeps_apart and limit > _SUSPECTS and await store.has_suspects():
            limit = _SUSPECTS
        with self._lost.claiming():
            wait_ms, claims, _ = await store.commands.take_due(limit)
            self._reads.note_due(store.lane, -1 if wait_ms is None else wait_ms)
            return await self._accept_again(store, claims, keeps_apart)

    async def _accept_again(
        self, store: LaneStore, claims: Sequence[Redelivery], keeps_apart: bool
    ) -> list[TaskInFlight]:
        postponed: list[Redelivery] = []
        last = [claim.id for claim in claims if claim.attempts >= self._max_retry]
        suspected = await store.suspected(last) if keeps_apart else set()
        with self._lost.claiming() as found:
            for claim in claims:
                try:
                    task = self._entries.read(claim.fields, claim.attempts + 1)
                except Malformed as error:
                    await self._refuse(store, claim, error)
                    continue
                held = TaskInFlight(task, store.lane, claim.id, True)
                # The last run of a task whose workers died has no neighbours: one of them may be what they died of.
                is_last = claim.id in suspected
                if keeps_apart and (self._alone is not None or (is_last and (found or len(self._held)))):
                    postponed.append(claim)
                    continue
                if is_last:
                    self._alone = held
                found.append(held)
            if postponed:
                await self._postpone(store, postponed)
            elif self._drains_for == store.lane:
                self._end_drain()  # it is in hand, or with another worker
            if found:
                counts = {claim.id: (claim.id, claim.deliveries, claim.attempts) for claim in claims}
                answers = await store.commands.begin([counts[held.entry_id] for held in found])
                found[:] = [held for held, is_ours in zip(found, answers, strict=True) if is_ours]
                found[:] = await self._without_copies(store, found)
                self._held.add(found)
        return found

    async def _postpone(self, store: LaneStore, claims: Sequence[Redelivery]) -> None:
        await self._park(store, claims, int(_APART_S * 1000))
        if self._drains_for is None and time.monotonic() >= self._next_drain_s:
            self._drains_for, self._drain_began_s = store.lane, time.monotonic()

    def _end_drain(self) -> None:
        now = time.monotonic()
        self._drains_for, self._next_drain_s = None, now + (_DRAIN_SHARE - 1) * (now - self._drain_began_s)

    async def _park(self, store: LaneStore, claims: Sequence[Redelivery], delay_ms: int) -> None:
        # Not begun yet, so their counts are those of their earlier runs and stay.
        await store.commands.park([Parking(claim.id, delay_ms, claim.deliveries, claim.attempts) for claim in claims])
        self._reads.note_due(store.lane, delay_ms)

    async def _sweep(self, keeps_apart: bool) -> list[TaskInFlight]:
        # All lanes, for the doubt may be of a pop that reads others: what does not fit is sorted out later.
        with self._lost.claiming() as found:
            self._lost.must_sweep = False
            await self._reads.kill_abandoned()
            for store in await self._lanes.all():
                async for page in store.commands.own_pending():
                    entries = self._held.of(store.lane)
                    stranded = [entry_id for entry_id in page if entry_id not in entries]
                    if stranded:
                        claims, _ = await store.commands.take(stranded, is_own_read=True)
                        found.extend(await self._accept_again(store, self._lost.as_before(claims), keeps_apart))
        return found

    def never_ran(self, held: TaskInFlight) -> None:
        """Take note that nobody has a task that was popped: the next pop takes it up."""
        self._lost.never_ran([held])
        self._lost.must_sweep = True

    async def hand_back(self) -> None:
        """Give back what pops that were cancelled or broke have left behind; other pops must not be under way."""
        if self._lost.can_sweep:
            for held in await self._sweep(keeps_apart=False):
                await self._lanes.store(held.lane).give_back(held)
                self._held.release(held)

    async def _sorted_out(self, found: list[TaskInFlight], wanted: TaskFilter) -> list[TaskInFlight]:
        misfits = [held for held in found if not wanted.accepts(held.task)]
        for lane in dict.fromkeys(held.lane for held in misfits):
            moved = [held for held in misfits if held.lane == lane]
            for held in moved:
                self._held.release(held)
            await self._lanes.store(lane).move(
                [(held.entry_id, held.task.id, wanted.place_of(held.task), held.task.attempts - 1) for held in moved]
            )
        return [held for held in found if wanted.accepts(held.task)] if misfits else found

    # --- time ---------------------------------------------------------------------------------------

    async def due_soon(self, lane: Lane, delay_s: float) -> None:
        """Take note that a task will be due, and let no read wait longer than that."""
        await self._reads.due_soon(lane, delay_s)

    async def wake(self) -> None:
        """Let reads that block return now."""
        self._wakes += 1
        await self._reads.wake()

    async def _promote(self) -> None:
        keys = [self._keys.due, self._keys.bodies, self._keys.index, self._keys.lanes]
        is_new = False
        for _ in range(_TRIES):
            streams = [self._keys.tasks(suffix_of(name)).stream for name in self._due_lanes]
            args: list[str | int] = [_PROMOTED, self._group, *self._due_lanes]
            moved, unknown = await self._client.run("tasks/promote", [*keys, *streams], args, Repeat.ONCE)
            if not unknown:
                if moved < _PROMOTED:
                    self._reads.note_due(None, -1)  # the next read tells when to look again
                break
            self._due_lanes, is_new = [*(name.decode() for name in unknown), *self._due_lanes][:_PROMOTED], True
        if is_new:
            await self._lanes.look()

    # --- waiting ------------------------------------------------------------------------------------

    async def _wait(self, timeout_s: float, count: int, wanted: TaskFilter) -> list[TaskInFlight]:
        by_lane = {store.lane: store for store in await self._lanes.read_by(wanted)}
        ordered = [by_lane[lane] for lane in reading_order(by_lane, 0)]
        block_ms = max(1, int(timeout_s * 1000))
        command: Command = (
            "XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", min(count, MAX_IDS), "BLOCK", block_ms,
            "STREAMS", *(store.stream for store in ordered), *(">" for _ in ordered),
        )  # fmt: skip
        streams = {store.stream.encode(): store for store in ordered}
        try:
            with self._lost.claiming() as found:
                for stream, entries in await self._reads.read(command, timeout_s) or ():
                    found.extend(await self._accept_fresh(streams[stream], entries))
                return await self._sorted_out(found, wanted)
        except GroupLost:
            self._lanes.forget_groups()
            return []

    async def close(self) -> None:
        """Close the connections."""
        await self._reads.close()
