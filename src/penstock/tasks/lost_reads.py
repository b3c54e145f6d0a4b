"""What may be pending with a consumer though nobody holds it: tasks of a read that broke or was cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.delivery.group_commands import Redelivery
from penstock.redis.aio import Connection
from penstock.tasks.tasks_in_flight import TaskInFlight, TasksInFlight


class LostReads:
    """Remembers that a sweep is needed, and what it must know."""

    def __init__(self, held: TasksInFlight) -> None:
        self._held = held
        self.must_sweep = False
        self.abandoned: set[Connection] = set()  # whose last read may be on its way still
        self._not_run: dict[str, int] = {}  # attempts before a run that may be recorded and never was

    @contextmanager
    def on_the_way(self) -> Iterator[list[TaskInFlight]]:
        """Collect tasks that the server has handed out and that the caller does not have yet.

        If something comes in between, nobody holds them: no heartbeat renews them, and the next sweep finds them.
        """
        found: list[TaskInFlight] = []
        try:
            yield found
        except BaseException:
            self.must_sweep = True
            self.never_ran(found)
            for held in found:
                self._held.release(held)
            raise

    def never_ran(self, tasks: Iterable[TaskInFlight]) -> None:
        """Take note that these tasks may be recorded as begun, and were not."""
        self._not_run.update({held.entry_id: held.task.attempts for held in tasks if held.is_again})

    def as_before(self, claims: Sequence[Redelivery]) -> list[Redelivery]:
        """Return claims with the attempts that really were."""
        return [replace(claim, attempts=self._not_run.pop(claim.id, claim.attempts)) for claim in claims]
