"""RedisTaskQueue: a task queue on Redis Streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal, Self

import msgspec

from penstock import task as values
from penstock.config import unique_worker_name, usual_heartbeat_ms
from penstock.dead_letter_limits import DeadLetterLimits
from penstock.dead_letter_record import MAX_TRACEBACK
from penstock.delivery.janitor import is_elected
from penstock.delivery.leases import StreamLeases
from penstock.errors import ConfigurationError, PenstockError
from penstock.events import Emitter, EventName, EventSink
from penstock.keys import StreamKeys, TaskKeys
from penstock.number_checks import check_number, number_of_seconds
from penstock.protection import Protection
from penstock.redis.blocking_read import late_after_s
from penstock.redis.client import StreamClient, check_client
from penstock.serializers import DEFAULT_MAX_BYTES, DEFAULT_MAX_DEPTH, PayloadLimits
from penstock.settings import TaskQueueSettings
from penstock.task import Result, Task, check_id
from penstock.tasks.dead_tasks import DeadTasks
from penstock.tasks.entries import TaskPublisher, place_in_index, when_due
from penstock.tasks.gauges import read_gauges
from penstock.tasks.handlers import Limits
from penstock.tasks.in_flight import TasksInFlight
from penstock.tasks.lane_store import Admission, LaneRegistry, LaneStore, Release, TaskDelivery
from penstock.tasks.lanes import ANY_TASK, Lane, TaskFilter
from penstock.tasks.listed import PendingTask, QueueGauges
from penstock.tasks.listing import TaskListing
from penstock.tasks.result_store import ResultStore
from penstock.tasks.task_reader import TaskReader
from penstock.tasks.undeliverable import UndeliverableEntries
from penstock.type_checks import check_list

logger = logging.getLogger("penstock.tasks")
_STEP = 500  # results per script call
_CHORES_EVERY_MS = 15_000
_CONSUMER_TTL_MS = 3_600_000
_DAY_MS = 86_400_000
_NAMED = 5  # ids in a log line


class RedisTaskQueue:
    """A task queue on Redis Streams: `<name>.tasks`, `<name>.results`, `<name>.dead`.

    `max_retry` is how often a task is tried again after its first run before it goes to the dead letters; `idle_ms` is
    how long a holder may be silent before its tasks are handed to others; results are kept for `result_ttl_ms`. Work
    that is not finished is kept for ever. A task of more than `max_payload_bytes`, or with a payload nested deeper than
    `max_payload_depth`, is rejected by enqueue(), and dead-lettered if another program wrote it.
    `dead_letter_limits` and `protection` are for the client that is made from a URL.
    """

    def __init__(
        self,
        client: str | StreamClient = "redis://localhost:6379/0",
        name: str = "penstock",
        *,
        idle_ms: int = 60_000,
        max_retry: int = 3,
        result_ttl_ms: int = 14 * _DAY_MS,
        encoding: Literal["msgpack", "json"] = "msgpack",
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        max_payload_depth: int = DEFAULT_MAX_DEPTH,
        dead_letter_limits: DeadLetterLimits | Mapping[str, Any] | str | None = None,
        protection: Protection | None = None,
        on_event: EventSink | None = None,
    ) -> None:
        if encoding not in {"msgpack", "json"}:
            raise ConfigurationError(f"encoding={encoding!r} must be 'msgpack' or 'json'")
        check_number("idle_ms", idle_ms)
        check_number("max_retry", max_retry, may_be_zero=True)
        check_number("result_ttl_ms", result_ttl_ms)
        self._owns_client = isinstance(client, str)
        if isinstance(client, str):
            self.client = StreamClient.from_url(client, dead_letter_limits=dead_letter_limits, protection=protection)
        elif dead_letter_limits is not None or protection is not None:
            name_of_it = "protection" if dead_letter_limits is None else "dead_letter_limits"
            raise ConfigurationError(f"pass {name_of_it} to the client: StreamClient(..., {name_of_it}=...)")
        else:
            check_client(client)
            self.client = client
        self.name, self.idle_ms, self.max_retry, self.result_ttl_ms = name, idle_ms, max_retry, result_ttl_ms
        self.keys = TaskKeys.of(name, self.client.prefix, self.client.is_cluster)
        self.group, self.consumer = name, unique_worker_name(name)
        self._emit = Emitter(on_event, name, name)
        limits = PayloadLimits(max_payload_bytes, max_payload_depth)
        encode: Callable[[Task], bytes] = values.encode if encoding == "msgpack" else msgspec.json.encode
        self.encode_task: Callable[[Task], bytes] = lambda task: values.encode_task(task, limits, encode)
        """Returns a task as it travels; raises EncodeError for one that no worker could read."""
        self._publisher = TaskPublisher(self.client, self.keys, self.group, self.encode_task)
        self._in_flight = TasksInFlight()
        self._lanes = LaneRegistry(self.client, self.keys, self.group, self.consumer)
        self._undeliverable = UndeliverableEntries(self.client, self.keys, self.group, self._emit)
        self._reader = TaskReader(
            self._lanes, self._in_flight, self._undeliverable, max_retry, limits, _late_after_s(idle_ms)
        )
        self._admission = Admission(self._lanes)
        self._result_store = ResultStore(self.client, self.keys)
        self._listing = TaskListing(self._lanes, limits)
        self.dead = DeadTasks(self.client, self.keys, self.group, limits)

    @classmethod
    def from_settings(cls, settings: TaskQueueSettings) -> Self:
        """Return the queue that the settings describe; the provider's table holds further parameters."""
        file = settings.protection_file
        protection = None if file is None else Protection.from_file(file)
        return cls(
            settings.url,
            idle_ms=settings.idle_ms,
            max_retry=settings.max_retry,
            protection=protection,
            **settings.options,
        )

    async def __aenter__(self) -> Self:
        """Return the queue."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the queue."""
        await self.close()

    def __repr__(self) -> str:
        """Show name and server, without secrets."""
        return f"RedisTaskQueue({self.client!r}, {self.name!r})"

    @property
    def undeliverable(self) -> int:
        """How many entries this object has dead-lettered that no handler gets: unreadable, copied or vanished ones."""
        return self._undeliverable.count

    # --- producers ----------------------------------------------------------------------------------

    async def enqueue(self, task: Task, *, delay: float | None = None, at: datetime | None = None) -> str:
        """Add a task, now or when it is due; return its id, or that of the open task with the same `unique` text.

        Guarantees: a task whose id is open, or has a result, is not added again, so enqueue() may be repeated.
        """
        return (await self._publisher.add([task], when_due(delay, at)))[0]

    async def enqueue_many(self, tasks: Sequence[Task], *, delay: float | None = None) -> list[str]:
        """Add tasks, many in one step; return the ids as enqueue() does."""
        check_list("tasks", tasks, "enqueue() takes a single task")
        return await self._publisher.add(tasks, when_due(delay, None))

    # --- consumers ----------------------------------------------------------------------------------

    async def pop(self, block: bool = True, timeout: float = 1) -> Task | None:
        """Take the next task, waiting for one up to `timeout` seconds if `block` is true."""
        found = await self._reader.pop(1, timeout if block else None, ANY_TASK, keeps_apart=False, begins=True)
        return found[0] if found else None

    async def pop_many(
        self,
        count: int,
        block: bool = True,
        timeout: float = 1,
        provides: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Task]:
        """Take up to `count` tasks that a worker with these capabilities and kinds can handle (None = any).

        A task that is on its last run, and whose workers died before, comes alone: it takes no neighbour along. The run
        of each task counts from now on; with `begin=False`, that of a task handed out before counts from begin() on.
        """
        if count < 1:
            raise ConfigurationError(f"count={count} must be positive")
        wanted = TaskFilter(provides, kinds)
        return await self._reader.pop(count, timeout if block else None, wanted, keeps_apart=True, begins=begin)

    async def begin(self, task: Task) -> bool:
        """Count the run of a task, as `pop_many(begin=False)` returned it; return False if it is not ours any more.

        Call it immediately before the handler: until then, a task that was handed out before loses no attempt if this
        process dies.
        """
        held = self._held(task)
        if held is None:
            return False
        return held.has_begun or await self._reader.begin(held)

    def holds(self, task: Task) -> bool:
        """Return whether this object holds a task, as pop_many() returned it, and has not lost it."""
        return self._held(task) is not None

    async def wake(self) -> None:
        """Make waiting pops of this process return now."""
        await self._reader.wake()

    async def hand_back(self, tasks: Sequence[Task] | None = None) -> int:
        """Return tasks whose handlers have not begun, together and without counting an attempt; return how many.

        Without an argument, return those that cancelled pops of this object left behind. close() does that as well, and
        the next pop takes them up. While other pops are under way nothing happens.
        """
        if tasks is None:
            return await self._reader.hand_back_stranded()
        return await self._reader.hand_back([held for held in map(self._held, tasks) if held is not None])

    def _held(self, task: Task) -> TaskDelivery | None:
        held = self._in_flight.get(task.id)
        return held if held is not None and held.task is task else None  # else it is lost, and perhaps taken again

    def abandon(self, task_id: str, *, has_run: bool) -> None:
        """Stop renewing the lease of a task that cannot be returned to the server.

        One that has not run is taken up by the next pop of this object; one that has is an orphan when its lease ends.
        """
        held = self._in_flight.get(task_id)
        if held is not None and has_run:
            self._in_flight.abandon(held)
        elif held is not None:
            self._in_flight.never_ran([held])

    async def ack(self, task_id: str) -> bool:
        """Settle a task as done, regardless of its holder; return False if no worker holds it."""
        return await self._release(Release("ack"), task_id) == "acked"

    async def nack(
        self, task_id: str, delay: float = 0, *, error: str = "", counts: bool = True, max_retry: int | None = None
    ) -> bool:
        """Return a task to be delivered again after the delay; return False if no worker holds it.

        `counts`: whether it was a failed run. A task that has failed once more than it may be tried again
        (`max_retry`, by default that of the queue) goes to the dead letters.
        """
        when_due(delay, None)
        most = self.max_retry if max_retry is None else max_retry
        ending = Release("nack", round(delay * 1000), counts, most, reason="max_deliveries", text=error)
        return await self._release(ending, task_id) in {"waiting", "dead"}

    async def dead_letter(
        self, task_id: str, reason: str = "fatal", *, error: str = "", text: str = "", traceback: str = ""
    ) -> bool:
        """Move a task to the dead letters, with an error as its result; return False if no worker holds it."""
        ending = Release("dead_letter", reason=reason, error=error, text=text, traceback=traceback[-MAX_TRACEBACK:])
        return await self._release(ending, task_id) == "dead"

    async def extend(self, task_id: str) -> bool:
        """Renew the lease of a task; return False if no worker holds it, or if this object has lost it."""
        return await self._release(Release("extend"), task_id) == "extended"

    async def _release(self, ending: Release, task_id: str) -> str:
        check_id("task_id", task_id)
        held = self._in_flight.get(task_id)
        if held is None:
            return await self._release_elsewhere(ending, task_id)
        answer = await held.release(ending)
        if ending.what != "extend" or answer == "gone":
            self._in_flight.release([held])
        if answer == "waiting":
            await self._reader.due_soon(held.store.lane, ending.delay_ms / 1000)
        return answer

    async def _release_elsewhere(self, ending: Release, task_id: str) -> str:
        value = await self.client.call(self.keys.index, "HGET", self.keys.index, task_id)
        if value is None:
            return "gone"
        entry_id, lane_name = place_in_index(value)
        lane = Lane.parse(lane_name)
        if lane is None or entry_id == "-":
            return "gone"
        return await self._lanes.store(lane).release(ending, entry_id, task_id, "")

    async def open_elsewhere(self, tasks: Sequence[Task]) -> set[str]:
        """Return the ids of those tasks that we hold in an entry other than the one that enqueue() has written.

        The results of such entries are thrown away, and must not be saved elsewhere either.
        """
        deliveries = [held for task in tasks if (held := self._in_flight.get(task.id)) is not None]
        if not deliveries:
            return set()
        ids = [held.task.id for held in deliveries]
        known = await self.client.call(self.keys.index, "HMGET", self.keys.index, *ids)
        return {
            held.task.id
            for held, value in zip(deliveries, known, strict=True)
            if value is not None and not held.is_named_by(value)
        }

    async def finish_many(self, results: Sequence[Result]) -> list[bool]:
        """Store results of tasks that this process holds and acknowledge the tasks, in one step.

        Guarantees: False = the task is not ours any more, or had a result: this one is thrown away.
        """
        answers = [False] * len(results)
        by_store: dict[LaneStore, tuple[list[int], list[tuple[TaskDelivery, Result]]]] = {}
        store, indexes, rows = None, list[int](), list[tuple[TaskDelivery, Result]]()
        for index, result in enumerate(results):
            held = self._in_flight.get(result.task_id)
            if held is not None:
                if held.store is not store:
                    store = held.store
                    indexes, rows = by_store.setdefault(store, ([], []))
                indexes.append(index)
                rows.append((held, result))
        for same, (indexes, rows) in by_store.items():
            for start in range(0, len(rows), _STEP):
                page = rows[start : start + _STEP]
                stored = await same.finish(page)
                self._in_flight.release([held for held, _ in page])
                for index, is_stored in zip(indexes[start : start + _STEP], stored, strict=True):
                    answers[index] = is_stored
        return answers

    async def admit(self, task: Task, limits: Limits) -> bool:
        """Return whether a task that we hold may start within the limits; if not, it is delivered again later.

        No attempt is burnt by that. A permit ends with the task, or with the silence of its holder.
        """
        held = self._in_flight.get(task.id)
        if held is None:
            return False
        is_admitted = await self._admission.admit(held, limits, self.idle_ms)
        if not is_admitted:
            self._in_flight.release([held])
        return is_admitted

    async def give_back_permit(self, task: Task, limits: Limits) -> None:
        """Release the permit of a task that has ended."""
        for lane in await self._admission.give_back(task, limits):
            await self._reader.due_soon(lane, 0)

    @contextmanager
    def renewing(
        self, heartbeat_interval_ms: int | None = None, hung: Callable[[], Iterable[Task]] = tuple
    ) -> Iterator[None]:
        """Renew the leases of all tasks that this object holds, from a thread, until the context ends.

        `hung` is called before each renewal: the tasks that it returns are no longer renewed, and become orphans
        when their leases expire.
        """
        interval_ms = heartbeat_interval_ms or usual_heartbeat_ms(self.idle_ms)
        self._reader.late_s = _late_after_s(self.idle_ms, interval_ms)
        leases = StreamLeases(
            self.client.settings, self.keys.index, self.group, self.consumer, interval_ms / 1000, self.idle_ms,
            partial(self._renewable, hung), self._lost,
        )  # fmt: skip
        leases.start()
        try:
            yield
        finally:
            leases.stop()

    def _renewable(self, hung: Callable[[], Iterable[Task]]) -> dict[StreamKeys, list[str]]:
        for held in [held for task in hung() if (held := self._held(task)) is not None]:
            self._in_flight.abandon(held)
        return self._in_flight.ids_by_stream()

    def _lost(self, keys: StreamKeys, entry_ids: list[str]) -> None:
        tasks = self._in_flight.lose(keys, entry_ids)
        if tasks:
            logger.warning(
                "lost the leases of %d task(s) of queue %s to other workers: %s",
                len(tasks),
                self.name,
                _some([held.task.id for held in tasks]),
            )
            self._emit(EventName.LEASE_LOST, ids=[held.task.id for held in tasks])

    # --- results ------------------------------------------------------------------------------------

    async def push_result(self, result: Result) -> bool:
        """Store a result without settling the task; return False if the task already had another one, which stays."""
        return await self._result_store.push(result)

    async def get_result(self, task_id: str) -> Result | None:
        """Return the result of a task if there is one."""
        check_id("task_id", task_id)
        return await self._result_store.get(task_id)

    async def wait_for_result(self, task_id: str, timeout: float) -> Result | None:
        """Return the result of a task, waiting up to a number of seconds; None if there is none yet."""
        check_id("task_id", task_id)
        return await self._result_store.wait(task_id, number_of_seconds("timeout", timeout))

    # --- operators ----------------------------------------------------------------------------------

    async def requeue_orphans(self, idle_ms: int | None = None, max_batch: int = 50) -> int:
        """Make tasks whose holders have been silent for `idle_ms` available again; return how many.

        A run that had begun counts as failed; tasks that had their last one go to the dead letters. Finished data that
        has outlived its retention goes along the way.
        """
        freed = 0
        for store in await self._lanes.all():
            with self._lanes.skipping_lost():
                freed += await self._free(store, self.idle_ms if idle_ms is None else idle_ms, max_batch - freed)
            if freed >= max_batch:
                break
        if await is_elected(self.client, self.keys.chore("upkeep"), self.consumer, _CHORES_EVERY_MS):
            await self.trim()
        return freed

    async def _free(self, store: LaneStore, idle_ms: int, limit: int) -> int:
        freed, dead, vanished = await store.orphans(idle_ms, limit, self.max_retry)
        if freed:
            await self._reader.due_soon(store.lane, 0)
            self._emit(EventName.RECLAIMED, count=freed)
        if dead:
            logger.warning(
                "%d task(s) of queue %s were dead-lettered because their workers died: %s",
                len(dead),
                self.name,
                _some(dead),
            )
            for task_id in dead:
                self._emit(EventName.DEAD_LETTERED, id=task_id, reason="max_deliveries", error="")
        await self._undeliverable.vanished(store, vanished)
        return freed

    async def trim(self) -> None:
        """Remove finished tasks, old results and dead letters, dead consumers and empty lanes.

        Of the open tasks it looks at some, and gives up those whose entries vanished.
        """
        stores = await self._lanes.all()
        await self._undeliverable.give_up_vanished(stores)
        for store in stores:
            with self._lanes.skipping_lost():
                await store.group.trim(0)
                await store.group.remove_dead_consumers(_CONSUMER_TTL_MS, except_for=self.consumer)
                if not store.lane.is_lasting and await store.close():
                    self._lanes.forget(store.lane)
        await self._result_store.trim(int(self.result_ttl_ms))
        await self.client.dead_letter_retention.apply(self.keys.dead, self.keys.counts)

    async def list_tasks(self, limit: int = 10, offset: int = 0) -> list[Task]:
        """Return open tasks: queued, waiting and running by priority and age, then scheduled ones by time."""
        return await self._listing.open_tasks(limit, offset)

    async def list_pending(self, limit: int = 100) -> list[PendingTask]:
        """Return tasks that were delivered and are not settled, oldest first."""
        return await self._listing.in_hand(limit)

    async def pending_count(self) -> int:
        """Return how many tasks are open."""
        return int(await self.client.call(self.keys.index, "HLEN", self.keys.index))

    async def gauges(self) -> QueueGauges:
        """Return the counts of the queue."""
        [found] = await read_gauges(self.client, [(self.name, self.keys)])
        return found

    async def close(self) -> None:
        """Close the connections; tasks that this object holds become orphans."""
        try:
            await self.hand_back()
        except PenstockError as error:
            logger.warning(
                "tasks of a cancelled pop() could not be returned; they become available when their leases expire: %s",
                error,
            )
        await self._reader.close()
        await self._result_store.close()
        if self._owns_client:
            await self.client.close()


def _late_after_s(idle_ms: int, interval_ms: int | None = None) -> float:
    # A worker may have leases of its own. Shorter ones are renewed more often, which is how we know; an interval of
    # more than a third of ours belongs to longer ones.
    interval_ms = usual_heartbeat_ms(idle_ms) if interval_ms is None else min(interval_ms, idle_ms // 3)
    return late_after_s(min(idle_ms, 4 * interval_ms) / 1000, interval_ms / 1000)


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
