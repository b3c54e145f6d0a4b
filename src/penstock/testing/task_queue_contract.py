"""The contract of a TaskQueue, as tests: subclass it, say how a queue is made, and let pytest run it.

    class TestMyQueue(TaskQueueContract):
        @pytest.fixture
        async def queue(self):
            async with MyQueue(...) as queue:
                yield queue

The queue must be empty, and try tasks again up to three times (`max_retry=3`). `other`, if it is overridden, is a
second object for the same queue, as another process would have it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigurationError, EncodeError
from penstock.runtime.aio import TaskGroup, pause
from penstock.task import Priority, Result, Status, Task
from penstock.tasks.queue import TaskQueue

MAX_RETRY = 3
_LONG_S = 30.0
_OLD_MS = 100  # how long a task is in hand before its lease is renewed


def result_of(task: Task, data: object = None) -> Result:
    """Return a result that says that the task went well."""
    return Result(task_id=task.id, kind=task.kind, data=data, attempts=task.attempts)


def in_first_run(task: Task) -> Task:
    """Return a task as it is when it was handed out once."""
    return msgspec.structs.replace(task, attempts=1)


class TaskQueueContract:
    """What every TaskQueue promises."""

    @pytest.fixture
    async def queue(self) -> Any:
        """Return an empty queue."""
        raise NotImplementedError("override the fixture `queue`")

    @pytest.fixture
    async def other(self, queue: TaskQueue) -> Any:
        """Return the same queue as another process has it; by default the very object."""
        return queue

    @pytest.fixture
    def dead_ids(self) -> Any:
        """Return a function that gives the ids of the dead tasks of a queue, oldest first; None = it cannot be told."""
        return None

    # --- in and out ---------------------------------------------------------------------------------

    async def test_it_has_every_method_of_the_protocol(self, queue: TaskQueue) -> None:
        assert isinstance(queue, TaskQueue)

    async def test_a_task_comes_out_as_it_went_in(self, queue: TaskQueue) -> None:
        task = Task(kind="render", payload={"n": 1, "raw": b"\xff", "list": [None, 1.5]}, requires=frozenset({"gpu"}))
        assert await queue.enqueue(task) == task.id
        assert await queue.pop() == in_first_run(task)

    async def test_tasks_come_in_the_order_in_which_they_were_added(self, queue: TaskQueue) -> None:
        tasks = [Task(kind="render", payload={"n": n}) for n in range(20)]
        assert await queue.enqueue_many(tasks) == [task.id for task in tasks]
        found = [await queue.pop() for _ in range(5)]
        found += await queue.pop_many(100)
        assert found == [in_first_run(task) for task in tasks]

    async def test_an_empty_queue_gives_nothing_at_once_if_it_is_not_to_block(self, queue: TaskQueue) -> None:
        started = time.monotonic()
        assert await queue.pop(block=False, timeout=_LONG_S) is None
        assert await queue.pop_many(5, block=False, timeout=_LONG_S) == []
        assert time.monotonic() - started < _LONG_S / 2

    async def test_a_pop_that_blocks_gives_up_when_the_time_is_over(self, queue: TaskQueue) -> None:
        started = time.monotonic()
        assert await queue.pop(timeout=0.1) is None
        assert 0.09 < time.monotonic() - started < _LONG_S

    async def test_a_pop_that_blocks_is_woken_by_a_new_task(self, queue: TaskQueue, other: TaskQueue) -> None:
        task = Task(kind="render")
        activities, found = TaskGroup(lambda: None), []

        async def pop() -> None:
            found.append(await queue.pop(timeout=_LONG_S))

        activities.start(pop)
        await other.enqueue(task)
        assert await activities.join(_LONG_S)
        assert found == [in_first_run(task)]

    async def test_a_task_is_handed_to_one_consumer_only(self, queue: TaskQueue, other: TaskQueue) -> None:
        await queue.enqueue_many([Task(kind="render") for _ in range(50)])
        found = [*await queue.pop_many(30), *await other.pop_many(30), *await queue.pop_many(30, block=False)]
        assert len({task.id for task in found}) == len(found) == 50

    async def test_the_same_task_is_added_once_only(self, queue: TaskQueue, other: TaskQueue) -> None:
        task = Task(kind="render")
        assert [await queue.enqueue(task), await other.enqueue(task)] == [task.id, task.id]
        assert await queue.enqueue_many([task, task]) == [task.id, task.id]
        assert await queue.pop() == in_first_run(task)
        assert await other.enqueue(task) == task.id  # in hand
        await queue.finish_many([result_of(task)])
        assert await queue.enqueue(task) == task.id  # done
        assert await queue.pop(block=False) is None

    async def test_what_cannot_be_carried_is_refused_and_nothing_else_with_it(self, queue: TaskQueue) -> None:
        with pytest.raises(EncodeError):
            await queue.enqueue_many([Task(kind="render"), Task(kind="render", payload={"x": object()})])
        with pytest.raises(ConfigurationError):
            await queue.enqueue(Task(kind="render"), delay=-1)
        with pytest.raises(ConfigurationError):
            await queue.enqueue(Task(kind="render"), delay=1, at=datetime.now(UTC))
        assert await queue.pending_count() == 0

    # --- settling -----------------------------------------------------------------------------------

    async def test_an_acknowledged_task_is_gone(self, queue: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        assert await queue.ack(task.id)
        assert not await queue.ack(task.id)
        assert await queue.requeue_orphans(idle_ms=1, max_batch=10) == 0
        assert await queue.pending_count() == 0

    async def test_another_process_may_acknowledge(self, queue: TaskQueue, other: TaskQueue) -> None:
        first, second = Task(kind="render"), Task(kind="render")
        await queue.enqueue_many([first, second])
        await queue.pop_many(2)
        assert await other.ack(second.id)
        assert await other.extend(first.id)
        assert await other.nack(first.id)
        again = await other.pop()
        assert again is not None
        assert (again.id, again.attempts) == (first.id, 2)

    async def test_nobody_acknowledges_what_nobody_holds(self, queue: TaskQueue) -> None:
        task = Task(kind="render")
        await queue.enqueue(task)
        assert not await queue.ack(task.id)
        assert not await queue.nack(task.id)
        assert not await queue.extend(task.id)
        assert not await queue.dead_letter(task.id)
        assert not await queue.ack("unknown")
        assert await queue.pop() == in_first_run(task)

    async def test_a_task_that_is_given_back_comes_again_with_its_attempts(self, queue: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        for attempts in range(1, MAX_RETRY + 2):
            task = await queue.pop()
            assert task is not None
            assert task.attempts == attempts
            assert await queue.nack(task.id, error="it failed")
        assert await queue.pop(block=False) is None

    async def test_a_hand_back_burns_no_attempt(self, queue: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        for _ in range(3 * MAX_RETRY):
            task = await queue.pop()
            assert task is not None
            assert task.attempts == 1
            assert await queue.nack(task.id, counts=False)

    async def test_a_task_that_fails_too_often_is_dead_and_its_result_tells(
        self, queue: TaskQueue, dead_ids: Any
    ) -> None:
        task = Task(kind="render")
        await queue.enqueue(task)
        for _ in range(MAX_RETRY + 1):
            assert await queue.pop() is not None
            await queue.nack(task.id, error="no paper")
        result = await queue.wait_for_result(task.id, _LONG_S)
        assert result is not None
        assert (result.status, result.error, result.attempts) == (Status.ERROR, "no paper", MAX_RETRY + 1)
        assert await queue.pending_count() == 0
        if dead_ids is not None:
            assert await dead_ids(queue) == [task.id]

    async def test_a_task_may_be_given_up_at_once(self, queue: TaskQueue, dead_ids: Any) -> None:
        task = Task(kind="render")
        await queue.enqueue(task)
        await queue.pop()
        assert await queue.dead_letter(task.id, error="ValueError", text="no such page", traceback="in print()")
        result = await queue.wait_for_result(task.id, _LONG_S)
        assert result is not None
        assert result.error == "ValueError: no such page"
        assert not await queue.ack(task.id)
        if dead_ids is not None:
            assert await dead_ids(queue) == [task.id]

    # --- time ---------------------------------------------------------------------------------------

    async def test_a_delayed_task_comes_when_it_is_due(self, queue: TaskQueue) -> None:
        started = time.time()
        later, at = Task(kind="later"), Task(kind="at")
        await queue.enqueue(later, delay=0.3)
        await queue.enqueue(at, at=datetime.now(UTC) + timedelta(seconds=0.15))
        assert await queue.pop(block=False) is None
        assert await queue.pending_count() == 2
        assert await queue.pop(timeout=_LONG_S) == in_first_run(at)
        assert time.time() - started >= 0.14
        assert await queue.pop(timeout=_LONG_S) == in_first_run(later)
        assert time.time() - started >= 0.29

    async def test_a_time_that_is_past_is_now(self, queue: TaskQueue) -> None:
        task = Task(kind="render")
        await queue.enqueue(task, at=datetime.now(UTC) - timedelta(days=1))
        assert await queue.pop(block=False) == in_first_run(task)

    async def test_a_task_that_is_given_back_with_a_delay_waits_for_it(self, queue: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        started = time.time()
        await queue.nack(task.id, delay=0.2)
        assert await queue.pop(block=False) is None
        assert await queue.pop(timeout=_LONG_S) is not None
        assert time.time() - started >= 0.19

    # --- orphans ------------------------------------------------------------------------------------

    async def test_a_task_of_a_silent_holder_is_handed_to_another(self, queue: TaskQueue, other: TaskQueue) -> None:
        tasks = [Task(kind="render") for _ in range(3)]
        await queue.enqueue_many(tasks)
        assert len(await queue.pop_many(3)) == 3
        assert await other.requeue_orphans(idle_ms=60_000, max_batch=10) == 0
        freed = 0
        while freed < 3:
            freed += await other.requeue_orphans(idle_ms=1, max_batch=2)
        again = [await other.pop() for _ in range(3)]
        assert sorted(task.id for task in again if task) == sorted(task.id for task in tasks)
        assert [task.attempts for task in again if task] == [2, 2, 2]

    async def test_a_lease_that_is_renewed_keeps_the_task(self, queue: TaskQueue, other: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        for _ in range(3):
            while (await other.list_pending())[0].idle_ms < _OLD_MS:
                await pause(_OLD_MS / 4000)
            extended_s = time.monotonic()
            assert await queue.extend(task.id)
            [in_hand] = await other.list_pending()
            assert in_hand.idle_ms <= (time.monotonic() - extended_s) * 1000 + _OLD_MS / 2, "the lease begins anew"
        assert await other.requeue_orphans(idle_ms=60_000, max_batch=10) == 0

    async def test_a_task_whose_holders_always_die_is_given_up(
        self, queue: TaskQueue, other: TaskQueue, dead_ids: Any
    ) -> None:
        task = Task(kind="render")
        await queue.enqueue(task)
        for _ in range(MAX_RETRY + 1):
            assert await queue.pop(timeout=_LONG_S) is not None
            deadline = time.monotonic() + _LONG_S
            while not await other.requeue_orphans(idle_ms=1, max_batch=10):
                if await other.wait_for_result(task.id, 0) is not None:
                    break
                assert time.monotonic() < deadline
        result = await queue.wait_for_result(task.id, _LONG_S)
        assert result is not None
        assert result.status is Status.ERROR
        assert await queue.pop(block=False) is None
        if dead_ids is not None:
            assert await dead_ids(queue) == [task.id]

    # --- results ------------------------------------------------------------------------------------

    async def test_a_result_comes_with_the_acknowledgement(self, queue: TaskQueue, other: TaskQueue) -> None:
        tasks = [Task(kind="render") for _ in range(3)]
        await queue.enqueue_many(tasks)
        found = await queue.pop_many(3)
        assert await queue.finish_many([result_of(task, {"n": n}) for n, task in enumerate(found)]) == [True] * 3
        for n, task in enumerate(tasks):
            result = await other.wait_for_result(task.id, _LONG_S)
            assert result is not None
            assert (result.task_id, result.data) == (task.id, {"n": n})
        assert await queue.pending_count() == 0

    async def test_the_first_result_stays(self, queue: TaskQueue, other: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        assert await other.push_result(result_of(task, "first"))
        assert not await queue.push_result(result_of(task, "second"))
        assert await queue.finish_many([result_of(task, "third")]) == [False]
        result = await queue.wait_for_result(task.id, 0)
        assert result is not None
        assert result.data == "first"
        assert await queue.pending_count() == 0

    async def test_a_late_result_of_a_holder_that_lost_its_task_is_refused(
        self, queue: TaskQueue, other: TaskQueue
    ) -> None:
        if other is queue:
            pytest.skip("needs two objects for one queue")
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        while not await other.requeue_orphans(idle_ms=1, max_batch=10):
            pass
        again = await other.pop()
        assert again is not None
        assert await queue.finish_many([result_of(task, "late")]) == [False]
        assert await other.finish_many([result_of(again, "right")]) == [True]
        result = await queue.wait_for_result(task.id, 0)
        assert result is not None
        assert result.data == "right"

    async def test_somebody_who_waits_for_a_result_is_woken(self, queue: TaskQueue, other: TaskQueue) -> None:
        await queue.enqueue(Task(kind="render"))
        task = await queue.pop()
        assert task is not None
        activities, found = TaskGroup(lambda: None), []

        async def wait() -> None:
            result = await other.wait_for_result(task.id, _LONG_S)
            found.append(result.data if result is not None else None)

        for _ in range(3):
            activities.start(wait)
        assert await queue.wait_for_result(task.id, 0.05) is None
        await queue.finish_many([result_of(task, 42)])
        assert await activities.join(_LONG_S)
        assert found == [42, 42, 42]

    async def test_a_result_that_does_not_come_is_not_waited_for_for_ever(self, queue: TaskQueue) -> None:
        started = time.monotonic()
        assert await queue.wait_for_result("unknown", 0.1) is None
        assert time.monotonic() - started < _LONG_S

    # --- which tasks --------------------------------------------------------------------------------

    async def test_a_worker_gets_what_it_can_do_and_the_rest_waits_for_others(
        self, queue: TaskQueue, other: TaskQueue
    ) -> None:
        plain = Task(kind="render")
        gpu = Task(kind="render", requires=frozenset({"gpu"}))
        foreign = Task(kind="print")
        await queue.enqueue_many([gpu, foreign, plain])
        for _ in range(3):
            found = await queue.pop_many(10, block=False, provides={"disk"}, kinds={"render"})
            assert [task.id for task in found] in ([plain.id], [])
        able = {"gpu", "disk"}
        found = await other.pop_many(10, timeout=5, provides=able, kinds={"render", "print"})
        found += await other.pop_many(10, timeout=1.5, provides=able, kinds={"render", "print"})
        assert {(task.id, task.attempts) for task in found} == {(gpu.id, 1), (foreign.id, 1)}

    async def test_urgent_tasks_go_first_and_the_others_are_not_starved(self, queue: TaskQueue) -> None:
        await queue.enqueue_many([Task(kind="render", priority=Priority.LOW) for _ in range(10)])
        await queue.enqueue_many([Task(kind="render") for _ in range(10)])
        await queue.enqueue_many([Task(kind="render", priority=Priority.HIGH) for _ in range(40)])
        found = [task.priority.value for _ in range(60) if (task := await queue.pop(block=False)) is not None]
        assert len(found) == 60
        assert found[:5].count("high") >= 4
        assert found[:40].count("high") > 30
        assert set(found[:40]) > {"high"}

    async def test_of_tasks_with_the_same_unique_text_one_is_open(self, queue: TaskQueue, other: TaskQueue) -> None:
        first, second = Task(kind="report", unique="monthly report"), Task(kind="report", unique="monthly report")
        assert await queue.enqueue_many([first, second]) == [first.id, first.id]
        assert await other.enqueue(second) == first.id
        task = await queue.pop()
        assert task == in_first_run(first)
        assert await queue.pop(block=False) is None
        assert await queue.enqueue(second) == first.id  # in hand
        await queue.finish_many([result_of(first)])
        assert await queue.enqueue(second) == second.id
        assert await queue.pop() == in_first_run(second)

    # --- looking ------------------------------------------------------------------------------------

    async def test_open_tasks_are_listed_and_counted(self, queue: TaskQueue, other: TaskQueue) -> None:
        tasks = [Task(kind="render", payload={"n": n}) for n in range(5)]
        await queue.enqueue_many(tasks)
        popped = await queue.pop()
        assert popped is not None
        assert [task.id for task in await other.list_tasks(limit=3, offset=1)] == [task.id for task in tasks[1:4]]
        assert len(await other.list_tasks(limit=10)) == await other.pending_count() == 5
        [hand] = await other.list_pending()
        assert (hand.id, hand.kind, hand.due_in_ms) == (popped.id, "render", None)
        await queue.finish_many([result_of(popped)])
        assert await other.list_pending() == []
        assert [task.id for task in await other.list_tasks(limit=10)] == [task.id for task in tasks[1:]]
        assert await other.pending_count() == 4
