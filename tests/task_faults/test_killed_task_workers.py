"""Workers that are killed, frozen or blocked: every task is done, no result comes twice, neighbours do not suffer."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from penstock.sync.tasks import RedisTaskQueue, Status, Task
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")
Start = Callable[..., "subprocess.Popen[bytes]"]
PATIENCE_S = 60.0


def results(raw: redis.Redis) -> Counter[str]:
    """Returns how many results each task has."""
    raw.set_response_callback(
        "XRANGE", lambda rows, **_: rows
    )  # as it is: one entry has the same fields for each result
    rows = raw.execute_command("XRANGE", "penstock.results", "-", "+")
    return Counter(task_id.decode() for _, fields in rows for task_id in fields[1::8])


def held(raw: redis.Redis) -> int:
    groups = raw.xinfo_groups("penstock.tasks") if raw.exists("penstock.tasks") else []
    return int(groups[0]["pending"]) if groups else 0


def test_a_thousand_tasks_of_a_killed_worker_are_done_by_another(
    queue: RedisTaskQueue, start_worker: Start, raw: redis.Redis, record_property: Callable[[str, object], None]
) -> None:
    tasks = [Task(kind="hang") for _ in range(1_000)]
    queue.enqueue_many(tasks)
    victim = start_worker(concurrency=1_000)
    eventually(lambda: held(raw) == 1_000, "the worker has all tasks in hand")
    heir = start_worker(concurrency=1_000)
    eventually(lambda: len(raw.xinfo_consumers("penstock.tasks", "penstock")) >= 1, "the heir is there")
    victim.kill()
    killed_at = time.monotonic()
    eventually(lambda: raw.hlen("{penstock}:done") >= 1_000, "all tasks have a result")
    record_property("recovered_after_s", time.monotonic() - killed_at)
    assert results(raw) == Counter(task.id for task in tasks)
    assert {queue.get_result(task.id).attempts for task in tasks[::50]} == {2}  # type: ignore[union-attr]
    assert raw.xlen("penstock.dead") == 0
    assert raw.hget("{penstock}:counts", "acked:hang") == b"1000"
    assert raw.hget("{penstock}:counts", "dead:hang") is None
    assert queue.pending_count() == 0
    heir.send_signal(signal.SIGTERM)
    assert heir.wait(PATIENCE_S) == 0


def test_a_task_that_kills_its_workers_is_given_up_and_takes_no_neighbour_along(
    queue: RedisTaskQueue, start_worker: Start, raw: redis.Redis
) -> None:
    poison = Task(kind="poison")
    naps = [Task(kind="nap", payload={"seconds": 0.01}) for _ in range(40)]
    queue.enqueue_many([*naps[:20], poison, *naps[20:]])
    for _ in range(4):
        assert start_worker(concurrency=50).wait(PATIENCE_S) == -signal.SIGKILL
    start_worker(concurrency=50)
    assert queue.wait_for_result(poison.id, PATIENCE_S) is not None
    for nap in naps:
        result = queue.wait_for_result(nap.id, PATIENCE_S)
        assert result is not None
        assert result.status is Status.OK
    assert [letter.task_id for letter in queue.dead.iterate()] == [poison.id]
    assert raw.hgetall("{penstock}:counts") == {
        b"added:nap": b"40", b"added:poison": b"1", b"acked:nap": b"40", b"dead:poison": b"1",
    }  # fmt: skip
    assert set(results(raw).values()) == {1}


def test_tasks_that_never_began_beside_a_poisonous_one_keep_their_runs(
    queue: RedisTaskQueue, start_worker: Start
) -> None:
    poison, quick = Task(kind="poison"), [Task(kind="quick", payload={"n": n}) for n in range(10)]
    queue.enqueue_many([poison, *quick])  # each time the poisonous task begins first, and ends its process
    for _ in range(4):
        assert start_worker().wait(PATIENCE_S) == -signal.SIGKILL
    start_worker()
    assert queue.wait_for_result(poison.id, PATIENCE_S) is not None
    results = [queue.wait_for_result(task.id, PATIENCE_S) for task in quick]
    # The server counts a task that it hands out for the first time. From then on only a handler that begins counts.
    assert [result and result.attempts for result in results] == [2] * len(quick)
    assert [letter.task_id for letter in queue.dead.iterate()] == [poison.id]


def test_a_task_that_calls_sys_exit_is_given_up_and_takes_no_neighbour_along(
    queue: RedisTaskQueue, start_worker: Start
) -> None:
    leave, naps = Task(kind="leave"), [Task(kind="nap", payload={"seconds": 0.2}) for _ in range(4)]
    queue.enqueue_many([leave, *naps])
    for _ in range(4):
        assert start_worker().wait(PATIENCE_S) == 66
    assert [(letter.task_id, letter.reason, letter.error) for letter in queue.dead.iterate()] == [
        (leave.id, "max_deliveries", "SystemExit")
    ]
    for nap in naps:
        result = queue.get_result(nap.id)
        assert result is not None
        assert result.attempts == 1


def test_a_handler_that_blocks_the_loop_keeps_its_task(queue: RedisTaskQueue, start_worker: Start) -> None:
    task = Task(kind="block", payload={"seconds": 6.5})
    queue.enqueue(task)
    for _ in range(2):  # so long a lease that it holds though the machine may be slow
        start_worker(idle_ms=5_000, concurrency=2)
    result = queue.wait_for_result(task.id, PATIENCE_S)
    assert result is not None
    assert result.data == "run 1"


def test_no_task_runs_twice_beside_a_handler_that_blocks_the_loop(
    queue: RedisTaskQueue, start_worker: Start, raw: redis.Redis, tmp_path: Path
) -> None:
    told, journal = tmp_path / "told", tmp_path / "journal"
    notes = [Task(kind="note", payload={"path": str(journal)}) for _ in range(20)]
    blocking = Task(kind="block_when_told", payload={"path": str(told), "seconds": 6.5})
    queue.enqueue_many([*notes[:10], blocking])
    start_worker(idle_ms=5_000, concurrency=2)  # so long a lease as above, for the same reason
    eventually(lambda: held(raw) == 1 and any("b" in each["flags"] for each in raw.client_list()), "it reads on")
    told.touch()
    eventually(lambda: not told.exists(), "the event loop is blocked")
    queue.enqueue_many(notes[10:])  # for a read whose reply nobody sees until the handler ends
    start_worker(idle_ms=5_000, concurrency=2)
    result = queue.wait_for_result(blocking.id, PATIENCE_S)
    assert result is not None
    assert result.data == "run 1"
    for task in notes:
        assert queue.wait_for_result(task.id, PATIENCE_S) is not None
    eventually(lambda: held(raw) == 0, "all is settled")
    assert Counter(journal.read_text().split()) == Counter(task.id for task in notes)


def test_a_frozen_worker_that_wakes_up_late_changes_nothing(
    queue: RedisTaskQueue, start_worker: Start, raw: redis.Redis
) -> None:
    task = Task(kind="hang")
    queue.enqueue(task)
    frozen = start_worker(concurrency=2, shutdown_grace_ms=1_000)
    eventually(lambda: held(raw) == 1, "the worker has the task in hand")
    frozen.send_signal(signal.SIGSTOP)
    other = start_worker(concurrency=2)
    result = queue.wait_for_result(task.id, PATIENCE_S)
    assert result is not None
    assert result.attempts == 2
    frozen.send_signal(signal.SIGCONT)
    for process in (frozen, other):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert results(raw) == {task.id: 1}
    assert queue.get_result(task.id) == result


def test_a_worker_that_is_told_to_end_finishes_what_it_does_and_hands_back_the_rest(
    queue: RedisTaskQueue, start_worker: Start, raw: redis.Redis
) -> None:
    tasks = [Task(kind="nap", payload={"seconds": 2}) for _ in range(20)]
    queue.enqueue_many(tasks)
    worker = start_worker(concurrency=4)
    eventually(lambda: held(raw) >= 4, "the worker has begun")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    done = results(raw)
    left = queue.pop_many(20, timeout=0.5)
    left += queue.pop_many(20, timeout=0.5)
    assert len(done) + len(left) == 20
    assert {task.attempts for task in left} == {1}
