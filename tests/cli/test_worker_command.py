"""`penstock worker` as people start it, and `penstock exporter`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from penstock.cli.target import load_handlers
from penstock.errors import ConfigurationError
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100.0
_TIMEOUT_S = 300  # a supervisor starts up to eight Pythons, one after the other on busy cores
Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    processes: list[Process] = []

    def run(*words: str, cwd: Path = ROOT, url: str = redis_url) -> Process:
        command = [sys.executable, "-m", "penstock", *words, "--url", url]
        # A group of its own, to which the tests can send what a terminal sends.
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True, process_group=0))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        for said in (process.stdout, process.stderr):
            if said is not None:
                said.close()


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
    assert worker.stdout is not None
    assert "20 done" in worker.stdout.read()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("tests.cli.jobs", "module:name"),
        ("tests.cli.none:x", "no module"),
        ("tests.cli.jobs:pid", "Handlers"),
        ("failing_jobs:handlers", "failing_jobs.py:2: ZeroDivisionError"),
        ("lacking_jobs:handlers", "lacking_jobs.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("torn_jobs:handlers", "SyntaxError"),
    ],
)
def test_a_target_that_is_none_is_told_in_one_line(
    target: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "failing_jobs.py").write_text("handlers = None\n1 / 0\n")
    (tmp_path / "lacking_jobs.py").write_text("import no_such_package\n")
    (tmp_path / "torn_jobs.py").write_text("def f(:\n")
    with pytest.raises(ConfigurationError) as failure:
        load_handlers(target)
    assert told in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_module_that_fails_to_import_ends_the_worker_with_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "failing_jobs.py").write_text("handlers = None\n1 / 0\n")
    worker = start("worker", "failing_jobs:handlers", cwd=tmp_path)
    assert worker.wait(PATIENCE_S) == 2
    assert worker.stderr is not None
    [line] = worker.stderr.read().splitlines()
    assert line.endswith("failing_jobs.py:2: ZeroDivisionError: division by zero")


JOBS = ("worker", "tests.cli.jobs:handlers")
STARTED, ENDED = "worker of queue", "ended ("


def lines(process: Process, text: str, count: int) -> list[str]:
    """Read what a process says until that many lines have the text."""
    assert process.stdout is not None
    found: list[str] = []
    while sum(text in line for line in found) < count:
        line = process.stdout.readline()
        assert line, f"it ended: {found}"
        found.append(line)
    return found


def check_quiet_end(process: Process, before: Sequence[str] = (), *, code: int = 0) -> list[str]:
    """Wait for the end of a supervisor, which has said the usual lines and complained of nothing. Return the lines."""
    assert process.stdout is not None
    assert process.stderr is not None
    said = [*before, *process.stdout.read().splitlines()]
    assert (process.wait(PATIENCE_S), process.stderr.read()) == (code, ""), said
    assert not [
        line for line in said if not (STARTED in line or ENDED in line or "changed; restarting the workers" in line)
    ]
    return said


def end_by_burst(start: Start, queue: RedisTaskQueue, folder: Path, processes: int) -> None:
    tasks = [send(queue, "say") for _ in range(20)]
    said = check_quiet_end(start(*SAY, str(processes), "--burst", cwd=folder))
    assert sum(STARTED in line for line in said) == processes
    assert all(result(queue, task) for task in tasks)


def end_by_uptime(start: Start, queue: RedisTaskQueue, folder: Path, processes: int) -> None:
    supervisor = start(*SAY, str(processes), "--max-uptime", "100ms", cwd=folder)
    said = lines(supervisor, STARTED, processes + 1)
    supervisor.send_signal(signal.SIGTERM)
    said = check_quiet_end(supervisor, said)
    assert sum("ended (uptime)" in line for line in said) >= 1


def end_by_reload(start: Start, queue: RedisTaskQueue, folder: Path, processes: int) -> None:
    supervisor = start(*SAY, str(processes), "--watch", cwd=folder)
    assert result(queue, send(queue, "say")) == 1
    write_handler(folder, 2)
    eventually(lambda: result(queue, send(queue, "say")) == 2, "the new code runs", PATIENCE_S)
    supervisor.send_signal(signal.SIGTERM)
    said = check_quiet_end(supervisor)
    assert sum("changed; restarting the workers" in line for line in said) >= 1


def end_by_signal(number: signal.Signals, start: Start, queue: RedisTaskQueue, folder: Path, processes: int) -> None:
    supervisor = start(*SAY, str(processes), cwd=folder)
    said = lines(supervisor, STARTED, processes)
    os.killpg(supervisor.pid, number)  # as a terminal does for Ctrl-C
    said = check_quiet_end(supervisor, said)
    assert sum("ended (stopped)" in line for line in said) == processes


SAY = ("worker", "watched_jobs:handlers", "-p")
WAYS = {
    "burst": end_by_burst,
    "uptime": end_by_uptime,
    "reload": end_by_reload,
    "SIGTERM": partial(end_by_signal, signal.SIGTERM),
    "Ctrl-C": partial(end_by_signal, signal.SIGINT),
}


def write_handler(folder: Path, answer: int) -> None:
    # Longer with each answer: Python takes a file of the same second and size for the one that it has compiled.
    # Moved into place: a worker that starts meanwhile must not import half of it.
    draft = folder / "watched_jobs.draft"
    draft.write_text(
        "\n" * answer + "from penstock.tasks import Handlers\n"
        f"handlers = Handlers()\n@handlers.task('say')\ndef say(task): return {answer}\n"
    )
    draft.replace(folder / "watched_jobs.py")


@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize("way", WAYS)
def test_supervised_processes_end_without_a_complaint(
    way: str, queue: RedisTaskQueue, start: Start, tmp_path: Path
) -> None:
    write_handler(tmp_path, 1)
    WAYS[way](start, queue, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("way", WAYS)
def test_supervised_processes_end_without_a_complaint_every_time(
    way: str, turn: int, queue: RedisTaskQueue, start: Start, tmp_path: Path
) -> None:
    write_handler(tmp_path, 1)
    WAYS[way](start, queue, tmp_path, 4)


def test_a_signal_to_every_process_of_a_service_lets_handlers_end(
    queue: RedisTaskQueue, start: Start, tmp_path: Path
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    supervisor = start(*JOBS, "-p", "2")
    said = lines(supervisor, STARTED, 2)
    task = Task(kind="until", payload={"began": str(began), "gate": str(gate)})
    queue.enqueue(task)
    eventually(began.exists, "the handler runs", PATIENCE_S)
    for pid in [supervisor.pid, *_children(supervisor.pid)]:
        os.kill(pid, signal.SIGTERM)
    said += lines(supervisor, ENDED, 1)  # the idle worker has ended; the supervisor has told both
    gate.touch()
    check_quiet_end(supervisor, said)
    assert result(queue, task) is not None


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_burst_without_a_server_ends_with_the_reason(start: Start) -> None:
    worker = start(*JOBS, "--burst", "-p", "2", url="redis://127.0.0.1:1")
    assert worker.wait(PATIENCE_S) == 1
    assert worker.stderr is not None
    said = worker.stderr.read().splitlines()
    assert len(said) == 2
    assert all("cannot connect to Redis at 127.0.0.1:1" in line for line in said)


def test_processes_are_started_again_and_end_together(queue: RedisTaskQueue, start: Start) -> None:
    supervisor = start("worker", "tests.cli.jobs:handlers", "--processes", "2", "--lease", "500ms")
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


def test_numbers_are_served_to_prometheus(queue: RedisTaskQueue, start: Start) -> None:
    queue.enqueue(Task(kind="other"))
    dead = send(queue, "other")
    queue.pop_many(2)
    queue.dead_letter(dead.id)
    worker = start("worker", "tests.cli.jobs:handlers", "--metrics-port", "0", "--lease", "10m")
    result(queue, send(queue))
    exporter = start("exporter", "--port", "0", "--every", "100ms")
    port = _port(exporter)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 30)  # all of 127.* is this machine; metrics are for 127.0.0.1
    running = 'penstock_tasks{queue="penstock",state="running"} 1.0'
    eventually(lambda: running in _scrape(port), "one task is in hand", PATIENCE_S)
    shown = _scrape(port)
    assert 'queue_pending_total{kind="other",stream="penstock.tasks"} 1.0' in shown
    assert 'queue_ack_total{kind="pid",queue="penstock"} 1.0' in shown
    assert 'queue_dead_total{kind="other",queue="penstock"} 1.0' in shown
    assert re.search(r'queue_pending_idle_max_seconds\{stream="penstock.tasks"\} \d', shown)
    assert 'penstock_dead_letters{owner="penstock",stream="penstock.dead"} 1.0' in shown
    port = _port(worker)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 30)
    shown = _scrape(port)
    assert 'worker_task_total{kind="pid",status="ok"} 1.0' in shown
    assert "penstock_worker_running_tasks 0.0" in shown
    assert 'handler_duration_seconds_count{kind="pid"} 1.0' in shown
    for process in (worker, exporter):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def _port(process: Process) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"on port (\d+)", line):
            return int(found[1])
    raise AssertionError("no port was told")


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        return str(reply.read().decode())
