"""`penstock worker` as people start it, and `penstock exporter`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.sync.tasks import RedisTaskQueue, Task
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    processes: list[Process] = []

    def run(*words: str, cwd: Path = ROOT) -> Process:
        command = [sys.executable, "-m", "penstock", *words, "--url", redis_url]
        processes.append(subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def result(queue: RedisTaskQueue, task: Task) -> object:
    found = queue.wait_for_result(task.id, PATIENCE_S)
    assert found is not None
    return found.data


def send(queue: RedisTaskQueue, kind: str = "pid") -> Task:
    task = Task(kind=kind)
    queue.enqueue(task)
    return task


def test_a_burst_does_what_is_there_and_ends(queue: RedisTaskQueue, start: Start) -> None:
    tasks = [send(queue) for _ in range(20)]
    worker = start("worker", "tests.cli.jobs:handlers", "--burst", "--concurrency", "4")
    assert worker.wait(PATIENCE_S) == 0
    assert {result(queue, task) for task in tasks} == {worker.pid}
    assert worker.stderr is not None
    assert "20 done" in worker.stderr.read()


@pytest.mark.parametrize(
    ("target", "told"),
    [("tests.cli.jobs", "module:name"), ("tests.cli.none:x", "no module"), ("tests.cli.jobs:pid", "Handlers")],
)
def test_a_target_that_is_none_is_told_in_one_line(start: Start, target: str, told: str) -> None:
    worker = start("worker", target)
    assert worker.wait(PATIENCE_S) == 1
    assert worker.stderr is not None
    [line] = worker.stderr.read().splitlines()
    assert told in line


def test_processes_are_started_again_and_end_together(queue: RedisTaskQueue, start: Start) -> None:
    supervisor = start("worker", "tests.cli.jobs:handlers", "--processes", "2", "--idle-ms", "500")
    pids: set[object] = set()
    eventually(lambda: pids.add(result(queue, send(queue))) or len(pids) == 2, "both work", PATIENCE_S)
    assert supervisor.pid not in pids
    assert result(queue, send(queue, "die")) == "lived"
    eventually(lambda: pids.add(result(queue, send(queue))) or len(pids) == 3, "another one came", PATIENCE_S)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE_S) == 0
    eventually(lambda: not any(_is_alive(pid) for pid in pids), "all are gone")


def test_workers_end_with_a_supervisor_that_was_killed(queue: RedisTaskQueue, start: Start) -> None:
    supervisor = start("worker", "tests.cli.jobs:handlers", "--processes", "2")
    pid = result(queue, send(queue))
    supervisor.kill()
    eventually(lambda: not _is_alive(pid), "the worker is gone")


def _is_alive(pid: object) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def test_a_change_of_a_file_starts_the_workers_anew(queue: RedisTaskQueue, start: Start, tmp_path: Path) -> None:
    text = (
        "from penstock.tasks import Handlers\nhandlers = Handlers()\n@handlers.task('say')\ndef say(task): return {}\n"
    )
    path = tmp_path / "watched_jobs.py"
    path.write_text(text.format(1))
    start("worker", "watched_jobs:handlers", "--watch", cwd=tmp_path)
    assert result(queue, send(queue, "say")) == 1
    path.write_text(text.format(2))
    eventually(lambda: result(queue, send(queue, "say")) == 2, "the new code runs", PATIENCE_S)


def test_numbers_are_served_to_prometheus(queue: RedisTaskQueue, start: Start) -> None:
    queue.enqueue(Task(kind="other"))
    dead = send(queue, "other")
    queue.pop_many(2)
    queue.bury(dead.id)
    worker = start("worker", "tests.cli.jobs:handlers", "--metrics-port", "0", "--idle-ms", "600000")
    result(queue, send(queue))
    exporter = start("exporter", "penstock", "--port", "0")
    port = _port(exporter)
    shown = _scrape(port)
    assert 'queue_pending_total{kind="other",stream="penstock.tasks"} 1.0' in shown
    assert 'queue_ack_total{kind="pid",queue="penstock"} 1.0' in shown
    assert 'queue_dead_total{kind="other",queue="penstock"} 1.0' in shown
    assert re.search(r'queue_pending_idle_max_seconds\{stream="penstock.tasks"\} \d', shown)
    in_hand = 'queue_size{queue="penstock",state="in_hand"} 1.0'  # the counts are taken one after the other
    eventually(lambda: in_hand in _scrape(port), "one task is in hand", PATIENCE_S)
    shown = _scrape(_port(worker))
    assert 'worker_task_total{kind="pid",status="ok"} 1.0' in shown
    assert 'handler_duration_seconds_count{kind="pid"} 1.0' in shown
    for process in (worker, exporter):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def _port(process: Process) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"on port (\d+)", line):
            return int(found[1])
    raise AssertionError("no port was told")


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        return str(reply.read().decode())
