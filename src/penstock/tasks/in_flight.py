"""What a queue object holds: every task that the server delivered to it and has not settled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.delivery.group_commands import Redelivery
from penstock.keys import StreamKeys
from penstock.tasks.lane_store import TaskDelivery

_MAX_ABANDONED = 10_000  # of a lane


class TasksInFlight:
    """The tasks of this object that the server has not settled: the heartbeat renews exactly these.

    Guarantees: a task is here from the moment its reply arrives until the server is known to have settled it. Tasks
    that a lost reply or an interrupted pop left behind are not here: `must_sweep` means that the server must be asked
    for them. Thread-safe.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, TaskDelivery] = {}
        self._by_entry: dict[StreamKeys, dict[str, TaskDelivery]] = {}
        self.must_sweep = False
        self._claims: dict[int, list[TaskDelivery]] = {}  # under way, by the identity of the list
        # Attempts before a run that may be recorded and did not begin. Lanes may have entries of one id.
        self._not_run: dict[tuple[StreamKeys, str], int] = {}
        self._abandoned: dict[StreamKeys, dict[str, None]] = {}  # entries that ran and could not be settled

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, streams: StreamKeys) -> dict[str, TaskDelivery]:
        """Return the tasks of a lane by their entry."""
        entries = self._by_entry.get(streams)
        return self._by_entry.setdefault(streams, {}) if entries is None else entries

    def ids_by_stream(self) -> dict[StreamKeys, list[str]]:
        """Return the ids of all entries: the leases that are renewed."""
        return {streams: list(entries) for streams, entries in list(self._by_entry.items())}

    def get(self, task_id: str) -> TaskDelivery | None:
        """Return a task if it is held."""
        return self._by_id.get(task_id)

    def add(self, deliveries: Iterable[TaskDelivery]) -> list[TaskDelivery]:
        """Hold tasks; return those whose id another entry has that is held already or precedes them."""
        store, entries, second = None, dict[str, TaskDelivery](), list[TaskDelivery]()
        by_id = self._by_id
        for delivery in deliveries:
            if delivery.store is not store:
                store, entries = delivery.store, self.of(delivery.store.streams)
            known = by_id.setdefault(delivery.task.id, delivery)
            if known is not delivery:
                if known.entry_id != delivery.entry_id or known.store is not store:
                    second.append(delivery)
                else:
                    by_id[delivery.task.id] = delivery
            entries[delivery.entry_id] = delivery
            if delivery.is_again:  # other workers may have run it since
                self._not_run.pop((store.streams, delivery.entry_id), None)
                self._abandoned.get(store.streams, {}).pop(delivery.entry_id, None)
        return second

    def release(self, deliveries: Iterable[TaskDelivery]) -> None:
        """Release tasks."""
        store, entries = None, dict[str, TaskDelivery]()
        for delivery in deliveries:
            if delivery.store is not store:
                store, entries = delivery.store, self.of(delivery.store.streams)
            if self._by_id.get(delivery.task.id) is delivery:
                del self._by_id[delivery.task.id]
            entries.pop(delivery.entry_id, None)

    def lose(self, streams: StreamKeys, entry_ids: Iterable[str]) -> list[TaskDelivery]:
        """Release entries of a stream that now belong to another consumer; return their tasks."""
        entries = self.of(streams)
        lost = [entries[name] for name in entry_ids if name in entries and not entries[name].is_settling]
        self.release(lost)
        return lost

    # --- what was left behind -----------------------------------------------------------------------

    @contextmanager
    def claiming(self) -> Iterator[list[TaskDelivery]]:
        """Collect tasks from the moment the server may deliver them until the caller has them.

        If the block raises, they are released, and the next sweep finds them.
        """
        found: list[TaskDelivery] = []
        self._claims[id(found)] = found
        try:
            yield found
        except BaseException:
            self.never_ran(found)
            raise
        finally:
            del self._claims[id(found)]

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is under way."""
        return bool(self._claims)

    def can_sweep(self, mine: list[TaskDelivery] | None = None) -> bool:
        """Return whether a sweep is needed and safe: it would mistake the tasks of other claims under way for lost."""
        return self.must_sweep and not self._claims.keys() - {id(mine)}

    def never_ran(self, deliveries: Sequence[TaskDelivery]) -> None:
        """Release tasks that may be recorded as begun and were not: the next sweep finds them."""
        # Also without begin(): a run that was recorded earlier and did not begin may still be in the record.
        self._not_run.update(
            {(each.store.streams, each.entry_id): each.attempts for each in deliveries if each.is_again}
        )
        self.release(deliveries)
        self.must_sweep = True

    def abandon(self, delivery: TaskDelivery) -> None:
        """Release a task that ran and could not be settled: sweeps leave it until its lease ends."""
        abandoned = self._abandoned.setdefault(delivery.store.streams, {})
        abandoned[delivery.entry_id] = None
        if len(abandoned) > _MAX_ABANDONED:  # most come to other workers, and nobody says so here
            del abandoned[next(iter(abandoned))]
        self.release([delivery])

    def not_stranded(self, streams: StreamKeys) -> Collection[str]:
        """Return the entries of a lane that sweeps leave alone."""
        return self.of(streams).keys() | self._abandoned.get(streams, {}).keys()

    def as_before(self, streams: StreamKeys, claims: Sequence[Redelivery]) -> list[Redelivery]:
        """Return the claims of a sweep, without attempts that were recorded and did not begin."""
        return [replace(claim, attempts=self._not_run.pop((streams, claim.id), claim.attempts)) for claim in claims]
