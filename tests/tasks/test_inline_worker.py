"""The inline worker does what is asked for, here and now."""

from __future__ import annotations

from penstock.task import Status, Task
from penstock.tasks import Handlers, InlineWorker, Retry, StubQueue
from tests.tasks.stage import MemoryBackend

handlers = Handlers()


@handlers.task("double", retry=Retry(max_attempts=2, initial_delay_ms=0))
async def double(task: Task) -> int:
    return 2 * int(task.payload["n"])


async def test_one_task_at_a_time() -> None:
    queue, backend = StubQueue(), MemoryBackend()
    worker = InlineWorker(queue, handlers, results=backend)
    assert await worker.run_once() is None
    await queue.enqueue_many([Task(kind="double", payload={"n": n}) for n in (1, 2)])
    result = await worker.run_once()
    assert result is not None
    assert result.data == 2
    assert list(backend.saved) == [result.task_id]
    assert await queue.pending_count() == 1


async def test_all_that_is_due_with_retries_and_follow_ups() -> None:
    queue = StubQueue()
    task = Task(kind="double", payload={"n": 1}, then=(Task(kind="double", payload={"n": 10}),))
    await queue.enqueue_many([task, Task(kind="double", payload={"n": "x"}), Task(kind="other")])
    results = await InlineWorker(queue, handlers).run_until_empty()
    assert sorted((result.status.value, result.data) for result in results if result.data) == [("ok", 2), ("ok", 20)]
    [failed] = [result for result in results if result.status is Status.ERROR]
    assert failed.attempts == 2
    assert await queue.pending_count() == 1  # of a kind that it does not know
