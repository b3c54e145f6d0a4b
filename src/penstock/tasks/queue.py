"""TaskQueue: what a worker, a producer and an operator need of a queue, whatever broker is behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, runtime_checkable

from penstock.task import Result, Task
from penstock.tasks.listed import PendingTask


@runtime_checkable
class TaskQueue(Protocol):
    """A queue of tasks.

    Guarantees: a task is handed out at least once and has one holder at a time. Of the results for one task id the
    first valid one stays. Any number of producers and consumers may use one queue; any process may acknowledge.
    """

    # --- producers ----------------------------------------------------------------------------------

    async def enqueue(self, task: Task, *, delay: float | None = None, at: datetime | None = None) -> str:
        """Add a task, now or when it is due; return its id, or that of the open task with the same `unique` text.

        A task whose id is open, or has a result, is not added again.
        """
        ...

    async def enqueue_many(self, tasks: Sequence[Task], *, delay: float | None = None) -> list[str]:
        """Add tasks; return the ids as enqueue() does."""
        ...

    # --- consumers ----------------------------------------------------------------------------------

    async def pop(self, block: bool = True, timeout: float = 1) -> Task | None:
        """Take the next task, waiting for one up to `timeout` seconds if `block` is true."""
        ...

    async def pop_many(
        self,
        count: int,
        block: bool = True,
        timeout: float = 1,
        provides: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[Task]:
        """Take up to `count` tasks that a worker with these capabilities and kinds can handle (None = any)."""
        ...

    async def ack(self, task_id: str) -> bool:
        """Settle a task as done, regardless of its holder; return False if no worker holds it."""
        ...

    async def nack(
        self, task_id: str, delay: float = 0, *, error: str = "", counts: bool = True, max_retry: int | None = None
    ) -> bool:
        """Return a task to be delivered again after the delay; return False if no worker holds it.

        `counts`: whether it was a failed run. A task that has failed once more than it may be tried again
        (`max_retry`, by default that of the queue) goes to the dead letters.
        """
        ...

    async def dead_letter(
        self, task_id: str, reason: str = "fatal", *, error: str = "", text: str = "", traceback: str = ""
    ) -> bool:
        """Move a task to the dead letters, with an error as its result; return False if no worker holds it.

        `error` is the class of what the handler raised, `text` what it says.
        """
        ...

    async def extend(self, task_id: str) -> bool:
        """Renew the lease of a task that this process holds; return False if it does not hold it any more."""
        ...

    async def finish_many(self, results: Sequence[Result]) -> list[bool]:
        """Store results of tasks that this process holds and acknowledge the tasks, in one step.

        False = the task is not ours any more, or had a result: this one is thrown away.
        """
        ...

    def renewing(
        self, heartbeat_interval_ms: int | None = None, hung: Callable[[], Iterable[Task]] = tuple
    ) -> AbstractContextManager[None]:
        """Renew the leases of all tasks that this process holds, in the background, until the context ends.

        `hung` returns tasks whose handlers should have ended long ago: let their leases expire.
        """
        ...

    # --- results ------------------------------------------------------------------------------------

    async def push_result(self, result: Result) -> bool:
        """Store a result without settling the task; return False if the task already had one, which stays."""
        ...

    async def wait_for_result(self, task_id: str, timeout: float) -> Result | None:
        """Return the result of a task, waiting up to a number of seconds; None if there is none yet."""
        ...

    # --- operators ----------------------------------------------------------------------------------

    async def requeue_orphans(self, idle_ms: int = 60_000, max_batch: int = 50) -> int:
        """Make tasks whose holders have been silent for `idle_ms` available again; return how many.

        That counts as a failed run; tasks that had their last one go to the dead letters.
        """
        ...

    async def list_tasks(self, limit: int = 10, offset: int = 0) -> list[Task]:
        """Return open tasks, oldest first: queued, scheduled, waiting and running."""
        ...

    async def list_pending(self, limit: int = 100) -> list[PendingTask]:
        """Return tasks that were delivered and are not settled."""
        ...

    async def pending_count(self) -> int:
        """Return how many tasks are open."""
        ...

    async def close(self) -> None:
        """Close this object; tasks that it holds become orphans."""
        ...
