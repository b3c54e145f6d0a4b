"""Takes tasks out of the lanes: new ones, those whose retry is due, those whose time has come."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeAlias

from penstock import envelope
from penstock.delivery.group_commands import MAX_IDS, Parking, Redelivery
from penstock.errors import ConnectionLost, GroupLost
from penstock.redis.blocking_read import is_late, longest_wait_s
from penstock.redis.packing import Command
from penstock.redis.retry import Repeat
from penstock.runtime.aio import Lock, pause
from penstock.serializers import PayloadLimits
from penstock.task import Task
from penstock.tasks.blocking_reads import BlockingReads
from penstock.tasks.entries import Malformed, TaskEntries, place_in_index
from penstock.tasks.in_flight import TasksInFlight
from penstock.tasks.lane_store import REFRESH_EVERY_S, LaneRegistry, LaneStore, TaskDelivery
from penstock.tasks.lanes import Lane, TaskFilter, portions, reading_order, suffix_of
from penstock.tasks.undeliverable import UndeliverableEntries

Entries: TypeAlias = Sequence[tuple[bytes, list[bytes]]]  # ids and fields, as the server sends them
_PROMOTED = 100  # scheduled tasks per script call
_ALONE_RETRY_S = 0.1  # how soon a task that must run alone is looked at again
_SUSPECTS = 16  # taken at once: if one kills the worker, the others wait for another lease
_SECOND_S = 1.0  # how soon a second entry of a held task is read again
_DRAIN_S, _DRAIN_SHARE = 5.0, 7  # how long nothing else is taken to let it run, and for what fraction of the time
_TRIES = 3
_PASSING_S = 30.0  # how long a pop skips tasks that it cannot handle before it returns nothing


class TaskReader:
    """Hands out tasks to one consumer.

    Guarantees: a read is sent once. Its tasks are in flight, and their leases renewed, as soon as the reply arrives; a
    reply that is processed too late for that delivers nothing. Tasks that such a reply, a broken connection or a
    cancelled pop left pending with this consumer are swept up before a later read, or handed back at the end; that
    counts no attempt.
    """

    def __init__(
        self, lanes: LaneRegistry, in_flight: TasksInFlight, undeliverable: UndeliverableEntries, max_retry: int,
        limits: PayloadLimits, late_s: float,
    ) -> None:  # fmt: skip
        self._lanes, self._in_flight, self._undeliverable = lanes, in_flight, undeliverable
        self._max_retry = max_retry
        self._client, self._keys, self._group, self._consumer = lanes.client, lanes.keys, lanes.group, lanes.consumer
        self.late_s = late_s  # how long after its command a reply hands out nothing
        self._entries = TaskEntries(self._keys, self._client.protection, limits)
        self._turn = self._wakes = 0
        self._reads = BlockingReads(self._client, self._keys.index)
        self._alone: TaskDelivery | None = None  # a held task that must have no neighbours
        self._suspect_begins = Lock()
        self._is_sweeping = False
        self._drains_for: Lane | None = None  # where a task waits until nothing else is held
        self._drain_began_s = self._next_drain_s = 0.0
        self._due_lanes: list[str] = []  # for which scheduled tasks were due lately

    # --- popping ------------------------------------------------------------------------------------

    async def pop(
        self, count: int, timeout_s: float | None, wanted: TaskFilter, keeps_apart: bool, begins: bool
    ) -> list[Task]:
        """Take up to `count` tasks; wait for the first one until the timeout (None = do not wait).

        With `begins`, their runs are recorded; otherwise the caller does that when the handler of each begins.
        """
        deadline = time.monotonic() + (timeout_s or 0)
        while True:
            await self._yield_to_sweep(deadline)
            must_wait = keeps_apart and self._must_run_alone()
            found = [] if must_wait else await self._persist(count, wanted, keeps_apart, begins)
            left_s = deadline - time.monotonic()
            if found or timeout_s is None or left_s <= 0:
                return [held.task for held in found]
            if must_wait:
                await pause(min(left_s, _ALONE_RETRY_S / 10))
            if must_wait or self._in_flight.must_sweep:
                continue
            wait_s = min(left_s, self._reads.until_due_s(), REFRESH_EVERY_S, longest_wait_s(self.late_s))
            found = await self._wait(wait_s, count, wanted)
            if found:
                return [held.task for held in found]

    async def _yield_to_sweep(self, deadline: float) -> None:
        # A sweep must be alone: while one is needed or under way, reads that block end, and pops that may wait do so.
        while (self._in_flight.must_sweep and self._in_flight.is_claiming) or self._is_sweeping:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            await self._reads.wake()
            await pause(min(left_s, _ALONE_RETRY_S / 10))

    def _is_suspect_running(self) -> bool:
        if self._alone is not None and self._in_flight.get(self._alone.task.id) is not self._alone:
            self._alone = None
        return self._alone is not None

    def _must_run_alone(self) -> bool:
        # Whether a task that must run alone is held, or waits until nothing else is.
        if self._is_suspect_running():
            return True
        if self._drains_for is not None and time.monotonic() - self._drain_began_s > _DRAIN_S:
            self._end_drain()
        # Also between the end of the others and its turn: a task read then would be its neighbour.
        return self._drains_for is not None and (len(self._in_flight) > 0 or not self._reads.is_due(self._drains_for))

    async def _persist(self, count: int, wanted: TaskFilter, keeps_apart: bool, begins: bool) -> list[TaskDelivery]:
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._take(min(count, MAX_IDS), wanted, keeps_apart, begins)
            except (GroupLost, ConnectionLost) as error:  # what a lost reply has handed out is swept up by the next try
                if isinstance(error, GroupLost):
                    self._lanes.forget_groups()
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _take(self, count: int, wanted: TaskFilter, keeps_apart: bool, begins: bool) -> list[TaskDelivery]:
        lanes = await self._lanes.read_by(wanted)
        with self._in_flight.claiming() as found:
            passes, wakes, until_s = 0, self._wakes, time.monotonic() + _PASSING_S
            while True:
                passes += 1
                is_passing = await self._take_pass(lanes, found, count, keeps_apart)
                await self._move_unwanted(found, wanted)
                if found:
                    break
                if self._in_flight.can_sweep(found):
                    continue  # the reply was late
                if is_passing and self._wakes == wakes and time.monotonic() < until_s:
                    continue  # what it can do may be behind them
                if passes > 1 or not any(map(self._reads.is_due, (None, *(store.lane for store in lanes)))):
                    break
            if begins:
                self._drop(found, await self._begin(found))
        return found

    async def begin(self, held: TaskDelivery) -> bool:
        """Record that the handler of a task begins; return False if the task belongs to another consumer now.

        Tasks whose workers died begin one after the other: one that ends the process takes none along that is recorded
        as begun and is not.
        """
        if held.is_suspect:
            async with self._suspect_begins:
                gone = await self._begin([held])
        else:
            gone = await self._begin([held])
        self._in_flight.release(gone)
        return not gone

    async def _begin(self, deliveries: Sequence[TaskDelivery]) -> set[TaskDelivery]:
        # Returns those that belong to other consumers now.
        unrecorded = [held for held in deliveries if not held.has_begun]
        gone = set[TaskDelivery]()
        for store in dict.fromkeys(held.store for held in unrecorded):
            begun = [held for held in unrecorded if held.store is store]
            for held in begun:
                held.has_begun = True  # from now on it may be recorded, whatever becomes of the reply
            answers = await store.commands.begin([(held.entry_id, held.deliveries, held.attempts) for held in begun])
            gone |= {held for held, is_ours in zip(begun, answers, strict=True) if not is_ours}
        return gone

    async def _take_pass(
        self, lanes: Sequence[LaneStore], found: list[TaskDelivery], count: int, keeps_apart: bool
    ) -> bool:
        # Returns whether anything was read, though it may be for other workers, or not a task.
        if self._in_flight.can_sweep(found):
            await self._sweep(found, keeps_apart)
        if self._reads.is_due(None):
            await self._promote()
        for store in lanes:
            if self._reads.is_due(store.lane) and len(found) < count:
                await self._take_due(store, found, count - len(found), keeps_apart)
        if self._is_suspect_running() or len(found) >= count:
            return False
        return await self._read(lanes, found, count - len(found))

    async def _read(self, lanes: Sequence[LaneStore], found: list[TaskDelivery], count: int) -> bool:
        self._turn += 1
        by_lane = {store.lane: store for store in lanes}
        ordered = [by_lane[lane] for lane in reading_order(by_lane, self._turn)]
        keys = [self._keys.due, self._keys.index, *(key for store in ordered for key in (store.stream, store.retries))]
        args: list[str | int] = [self._group, self._consumer, count]
        args += portions([store.lane for store in ordered], count)
        sent_s = time.monotonic()
        wait_ms, waits, rows, elsewhere = await self._client.run("tasks/take", keys, args, Repeat.ONCE)
        self._reads.note_due(None, wait_ms)
        for store, lane_wait_ms in zip(ordered, waits, strict=True):
            self._reads.note_due(store.lane, lane_wait_ms)
        read = [(ordered[number - 1], entries) for number, entries in rows]
        await self._accept_fresh(read, found, sent_s, set(elsewhere))
        return bool(rows) and not self._in_flight.must_sweep

    async def _accept_fresh(
        self, rows: Sequence[tuple[LaneStore, Entries]], found: list[TaskDelivery], sent_s: float,
        elsewhere: Collection[bytes] = (),
    ) -> None:  # fmt: skip
        # Those in `elsewhere` are open in other entries.
        if self._lanes.is_restored:
            rows = [(store, await self._without_settled(store, entries)) for store, entries in rows]
        if rows and is_late(sent_s, self.late_s):
            self._in_flight.must_sweep = True  # for those that are still ours
            return
        fresh, foreign = list[TaskDelivery](), list[TaskDelivery]()
        malformed = list[tuple[LaneStore, Redelivery, Malformed]]()
        for store, entries in rows:
            for raw_id, fields in entries:
                try:
                    fresh.append(TaskDelivery(self._entries.read(fields, 1), store, raw_id.decode(), False))
                except Malformed as error:
                    malformed.append((store, Redelivery(raw_id.decode(), 0, 0, fields), error))
                    continue
                if len(fields) != 6 or fields[2] != b"task_id" or raw_id in elsewhere:  # enqueue() writes three fields
                    foreign.append(fresh[-1])
        second = self._in_flight.add(fresh)
        found += fresh
        for store, claim, why in malformed:
            await self._undeliverable.malformed(store, claim, why, partial(self._park, store, [claim]))
        await self._drop_copies(found, second, foreign)

    def _drop(self, found: list[TaskDelivery], gone: Collection[TaskDelivery]) -> None:
        if gone:
            self._in_flight.release(gone)
            found[:] = [held for held in found if held not in gone]

    async def _drop_copies(
        self, found: list[TaskDelivery], second: Sequence[TaskDelivery], foreign: Sequence[TaskDelivery] = ()
    ) -> None:
        # Any program can write an entry with the id of a task. The script that reads entries compares them with the
        # index; after a blocking read, that would take a round trip for every task. So only those are checked that the
        # script has found, that enqueue() cannot have written, or of whose task there are several.
        suspects, copied = {*second, *foreign}, {held.task.id for held in second}
        checked = [held for held in found if held in suspects or held.task.id in copied] if suspects else []
        if not checked:
            return
        ids, index, done = [held.task.id for held in checked], self._keys.index, self._keys.done
        known = await self._client.call(index, "HMGET", index, *ids)
        # After the index: a task that has just ended is in at least one.
        ended = await self._client.call(done, "HMGET", done, *ids)
        gone, waits = set[TaskDelivery](), set(second)
        for held, value, result in zip(checked, known, ended, strict=True):
            why = ""
            if value is not None and not held.is_named_by(value):
                why = f"task {held.task.id} is open in another entry, {envelope.text(value)}"
            elif value is None and result is not None:
                why = f"task {held.task.id} already has a result"
            if why:
                await self._undeliverable.invalid(held, why)
                gone.add(held)
            elif held in waits and self._in_flight.get(held.task.id) not in gone:
                # The index has no entry for the task: this one waits until the one that we hold has ended.
                await held.hand_back(int(_SECOND_S * 1000))
                await self.due_soon(held.store.lane, _SECOND_S)
                gone.add(held)
        self._drop(found, gone)
        # Those whose first entry was rejected; one that was put aside in the meantime is no longer found.
        self._in_flight.add([held for held in found if held in waits])

    async def _without_settled(self, store: LaneStore, entries: Entries) -> Entries:
        # A group that was lost and created again delivers the whole stream: the index knows which tasks are open.
        named = [(row[0], row[1][3]) for row in entries if len(row[1]) >= 4 and row[1][2] == b"task_id"]
        if not named:
            return entries
        known = await self._client.call(self._keys.index, "HMGET", self._keys.index, *(name for _, name in named))
        settled = {
            entry_id
            for (entry_id, _), value in zip(named, known, strict=True)
            if value is None or place_in_index(value)[0] != entry_id.decode()
        }
        if settled:
            command: Command = ("XACK", store.stream, self._group, *settled)
            await self._client.call(store.stream, *command, repeat=Repeat.IDEMPOTENT)
        return [row for row in entries if row[0] not in settled]

    # --- tasks that were handed out before ----------------------------------------------------------

    async def _take_due(self, store: LaneStore, found: list[TaskDelivery], limit: int, keeps_apart: bool) -> None:
        if keeps_apart and limit > _SUSPECTS and await store.has_suspects():
            limit = _SUSPECTS
        wait_ms, claims, missing = await store.commands.take_due(limit)
        self._reads.note_due(store.lane, -1 if wait_ms is None else wait_ms)
        await self._accept_again(store, claims, found, keeps_apart)
        await self._undeliverable.vanished(store, missing)

    async def _accept_again(
        self, store: LaneStore, claims: Sequence[Redelivery], found: list[TaskDelivery], keeps_apart: bool
    ) -> None:
        neighbours, again, malformed = len(self._in_flight), list[TaskDelivery](), list[tuple[Redelivery, Malformed]]()
        for claim in claims:
            try:
                task = self._entries.read(claim.fields, claim.attempts + 1)
                counts = claim.deliveries, claim.attempts
                again.append(TaskDelivery(task, store, claim.id, True, *counts, has_begun=False))
            except Malformed as error:
                malformed.append((claim, error))
        second = self._in_flight.add(again)
        found += again
        for claim, why in malformed:
            await self._undeliverable.malformed(store, claim, why, partial(self._park, store, [claim]))
        postponed = await self._postponed(store, again, neighbours) if keeps_apart else set()
        if postponed:
            ids = {held.entry_id for held in postponed}
            await self._postpone(store, [claim for claim in claims if claim.id in ids])
            self._drop(found, postponed)
        elif self._drains_for == store.lane:
            self._end_drain()  # its task is held here or by another worker
        await self._drop_copies(found, second)

    async def _postponed(self, store: LaneStore, again: Sequence[TaskDelivery], neighbours: int) -> set[TaskDelivery]:
        # The last run of a task whose workers died has no neighbours: one of them may be what they died of.
        suspected = await store.suspected([held.entry_id for held in again])
        postponed = set[TaskDelivery]()
        for held in again:
            held.is_suspect = held.entry_id in suspected
            is_last = held.is_suspect and held.attempts >= self._max_retry
            if self._is_suspect_running() or (is_last and neighbours):
                postponed.add(held)
                continue
            if is_last:
                self._alone = held
            neighbours += 1
        return postponed

    async def _postpone(self, store: LaneStore, claims: Sequence[Redelivery]) -> None:
        await self._park(store, claims, int(_ALONE_RETRY_S * 1000))
        if self._drains_for is None and time.monotonic() >= self._next_drain_s:
            self._drains_for, self._drain_began_s = store.lane, time.monotonic()

    def _end_drain(self) -> None:
        now = time.monotonic()
        self._drains_for, self._next_drain_s = None, now + (_DRAIN_SHARE - 1) * (now - self._drain_began_s)

    async def _park(self, store: LaneStore, claims: Sequence[Redelivery], delay_ms: int) -> None:
        # Not begun yet, so their counts are those of their earlier runs and stay.
        await store.commands.park([Parking(claim.id, delay_ms, claim.deliveries, claim.attempts) for claim in claims])
        self._reads.note_due(store.lane, delay_ms)

    async def _sweep(self, found: list[TaskDelivery], keeps_apart: bool) -> None:
        # All lanes, because the interrupted pop may have read others; misfits are moved later.
        self._in_flight.must_sweep, self._is_sweeping = False, True
        try:
            await self._reads.kill_abandoned()
            for store in await self._lanes.all():
                held = partial(self._in_flight.not_stranded, store.streams)
                async for claims, missing in store.commands.take_unheld(held, is_own_read=True):
                    before = self._in_flight.as_before(store.streams, claims)
                    await self._accept_again(store, before, found, keeps_apart)
                    await self._undeliverable.vanished(store, missing)
        finally:
            self._is_sweeping = False

    async def hand_back(self, deliveries: Sequence[TaskDelivery]) -> int:
        """Give back tasks whose handlers have not begun, a lane at a time; return how many of them were ours."""
        count = 0
        for store in dict.fromkeys(held.store for held in deliveries):
            handed_back = [held for held in deliveries if held.store is store]
            count += await store.hand_back(handed_back)
            self._in_flight.release(handed_back)
            await self.due_soon(store.lane, 0)
        return count

    async def hand_back_stranded(self) -> int:
        """Give back what cancelled or failed pops left behind; does nothing while other pops are under way."""
        if not self._in_flight.can_sweep():
            return 0
        with self._in_flight.claiming() as found:
            await self._sweep(found, keeps_apart=False)
            return await self.hand_back(found)

    async def _move_unwanted(self, found: list[TaskDelivery], wanted: TaskFilter) -> None:
        misfits = [held for held in found if not wanted.accepts(held.task)]
        for store in dict.fromkeys(held.store for held in misfits):
            moved = [held for held in misfits if held.store is store]
            for held in await store.move([(held, wanted.place_of(held.task)) for held in moved]):
                await self._undeliverable.invalid(
                    held, "this worker cannot run the task, and the queue has no room for another lane"
                )
            self._drop(found, set(moved))

    # --- time ---------------------------------------------------------------------------------------

    async def due_soon(self, lane: Lane, delay_s: float) -> None:
        """Record when a task will be due, and let no read wait longer."""
        await self._reads.due_soon(lane, delay_s)

    async def wake(self) -> None:
        """Let reads that block return now."""
        self._wakes += 1
        await self._reads.wake()

    async def _promote(self) -> None:
        names = self._keys
        keys = [names.due, names.bodies, names.index, names.lanes, names.paused, names.unique, names.counts]
        is_new = False
        for _ in range(_TRIES):
            streams = [self._keys.tasks(suffix_of(name)).stream for name in self._due_lanes]
            args: list[str | int] = [_PROMOTED, self._group, *self._due_lanes]
            moved, unknown = await self._client.run("tasks/promote", [*keys, *streams], args, Repeat.ONCE)
            if not unknown:
                if moved < _PROMOTED:
                    self._reads.note_due(None, -1)  # the next read returns when to look again
                break
            self._due_lanes, is_new = [*(name.decode() for name in unknown), *self._due_lanes][:_PROMOTED], True
        if is_new:
            await self._lanes.refresh()

    # --- waiting ------------------------------------------------------------------------------------

    async def _wait(self, timeout_s: float, count: int, wanted: TaskFilter) -> list[TaskDelivery]:
        by_lane = {store.lane: store for store in await self._lanes.read_by(wanted)}
        ordered = [by_lane[lane] for lane in reading_order(by_lane, 0)]
        block_ms = max(1, int(timeout_s * 1000))
        command: Command = (
            "XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", min(count, MAX_IDS), "BLOCK", block_ms,
            "STREAMS", *(store.stream for store in ordered), *(">" for _ in ordered),
        )  # fmt: skip
        streams = {store.stream.encode(): store for store in ordered}
        with self._lanes.skipping_lost(), self._in_flight.claiming() as found:
            sent_s = time.monotonic()
            rows = await self._reads.read(command, timeout_s) or ()
            await self._accept_fresh([(streams[stream], entries) for stream, entries in rows], found, sent_s)
            await self._move_unwanted(found, wanted)
            return found
        return []

    async def close(self) -> None:
        """Close the connections."""
        await self._reads.close()
