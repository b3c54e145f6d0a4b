"""The parts of a task worker of the sync half, where threads come between any two steps."""

from __future__ import annotations

import threading
from typing import Any

from penstock.counters import WorkerTally
from penstock.events import Emitter
from penstock.sync.tasks import StubQueue
from penstock.sync.tasks.committer import ResultCommitter
from penstock.task import Result, Status, Task


class Meeting:
    """A lock after which everybody waits until two threads have had it."""

    def __init__(self) -> None:
        self._lock, self._both = threading.Lock(), threading.Barrier(2)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._both.wait(30)


def test_results_of_two_hands_that_end_at_once_are_sent() -> None:
    queue = StubQueue()
    queue.enqueue_many([Task(kind="a"), Task(kind="b")])
    tasks = queue.pop_many(2)
    assert len(tasks) == 2
    committer: Any = ResultCommitter(queue, None, WorkerTally(), 30.0, save_errors=False, emit=Emitter(None, ""))
    committer._lock = Meeting()
    hands = [
        threading.Thread(
            target=committer.settle,
            args=(task, Result(task_id=task.id, kind=task.kind, status=Status.OK)),
            daemon=True,
        )
        for task in tasks
    ]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join(30)
    committer._lock = threading.Lock()
    assert committer.dirty.is_set(), "neither was told to be the first"
    committer.run_once()
    results = [queue.get_result(task.id) for task in tasks]
    assert all(results)
