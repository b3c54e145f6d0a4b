"""What every fault test has: worker processes, producers of both halves, and the checker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.scripts import names, script
from tests.conftest import turn_of
from tests.faults.balanced_service import Start
from tests.faults.checker import Checker
from tests.faults.producers import push_many
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess
from tests.helpers.ageing import LEASE_MS as LONG_LEASE_MS
from tests.helpers.ageing import Ageing

# Seconds mean something only with the machine to itself: `make test-failover` sets this.
_TIMED = ["test_failover_times.py", "test_result_times.py", "test_takeover_times.py"]
collect_ignore = [] if os.environ.get("PENSTOCK_TIMED") else _TIMED

STREAM, GROUP = "orders", "billing"
LEASE_MS = 2_000  # must run out in many tests, and hold meanwhile on a busy machine
LASTING = {"min_idle_claim_ms": LONG_LEASE_MS, "heartbeat_interval_ms": 100, "recovery_interval_ms": 50}
"""A lease that does not run out in a test, however slow the machine; `outlive` makes it old."""
_QUICK = {"group": GROUP, "min_idle_claim_ms": LEASE_MS, "block_ms": 200, "retry_initial_delay_ms": 20}


_HALVES = ("async", "sync")


@pytest.fixture(params=_HALVES)
def half(request: pytest.FixtureRequest) -> str:
    """Both halves of the library, one after the other."""
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves one half of each test: a worker process costs half a second. The other half is due in the next rotation."""
    if config.getoption("--matrix") != "all":
        items[:] = [item for item in items if not _is_spared(item)]


def _is_spared(item: pytest.Item) -> bool:
    if item.path.parent != Path(__file__).parent or not hasattr(item, "callspec"):
        return False  # the hook is shown the tests of all folders
    half = item.callspec.params.get("half")
    return half is not None and half != _HALVES[turn_of(item) % 2]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Notes a number that the test found; all of them are listed at the end of the run."""
    return lambda name, value: request.node.user_properties.append((name, value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was measured."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name} = {value}  ({report.nodeid.rpartition('::')[2]})")


class Scene:
    """One stream, the workers on it, and the means to publish and to judge."""

    def __init__(self, url: str, raw: redis.Redis, folder: Path) -> None:
        self.url, self.raw, self.folder = url, raw, folder
        self.workers: list[WorkerProcess] = []
        self.published: list[str] = []
        self.checker = Checker(raw, STREAM, GROUP)

    def worker(self, half: str = "async", url: str | None = None, **job: Any) -> WorkerProcess:
        """Starts a worker process; `config` adds to the quick settings of these tests."""
        config = {**_QUICK, **job.pop("config", {})}
        described = {"url": url or self.url, "stream": STREAM, "half": half, "config": config, **job}
        worker = WorkerProcess(described, self.folder / f"worker-{len(self.workers)}.log")
        self.workers.append(worker)
        return worker

    def publish(self, *bodies: Any, half: str = "async", url: str | None = None, **options: Any) -> list[str]:
        """Publishes bodies and returns their ids."""
        ids = push_many(half, url or self.url, STREAM, list(bodies), **options)
        self.published += ids
        return ids

    def load_scripts(self) -> None:
        """Makes all scripts known to the server, so that the first call of each is the one that takes effect."""
        for name in names():
            self.raw.script_load(script(name).source)

    def outlive(self, leases: int) -> None:
        """Lets so many leases of what is pending pass, and sees that each is renewed: for workers that are `LASTING`."""
        ageing = Ageing(self.raw, STREAM, GROUP)
        for _ in range(leases):
            ageing.age()
            eventually(ageing.is_renewed, "the leases are renewed", story=self.story)

    def gate(self, name: str = "gate") -> str:
        """Returns the path of a file that does not exist yet: handlers wait `until` it does."""
        return str(self.folder / name)

    def open(self, gate: str) -> None:
        """Lets the handlers pass that wait at a gate."""
        Path(gate).touch()

    def respawn(self, half: str, code: int, **job: Any) -> int:
        """Starts one worker after the other until all is done; returns how many ended with the code."""
        deaths = 0
        while True:
            worker = self.worker(half, **job)
            while worker.is_alive() and not self.checker.is_quiet():
                time.sleep(0.01)  # either may come first: there is no event for both
            if worker.is_alive():
                return deaths
            assert worker.wait() == code, worker.story()
            deaths += 1

    def wait_until_quiet(self) -> None:
        """Waits until nothing is pending or unread."""
        eventually(self.checker.is_quiet, "the group is done", story=self.story)

    def check(self) -> None:
        """Waits for the end of the work, and checks the whole history."""
        self.wait_until_quiet()
        found = self.checker.check_conserved(self.published)
        self.checker.check_handled(self.workers, found)
        self.checker.check_starts(self.workers)
        self.checker.check_quiet()

    def story(self) -> str:
        return "\n".join(f"=== worker {worker.pid}\n{worker.last_words()}" for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@pytest.fixture
def scene(server: EmbeddedServer, raw: redis.Redis, tmp_path: Path) -> Iterator[Scene]:
    """A stream on `server`."""
    made = Scene(server.unix_url, raw, tmp_path)
    yield made
    made.close()


@pytest.fixture
def scene_on(tmp_path: Path) -> Iterator[Callable[[EmbeddedServer], Scene]]:
    """Makes a stream on a server of the test's own."""
    made: list[Scene] = []

    def make(server: EmbeddedServer) -> Scene:
        made.append(Scene(server.url, redis.Redis(unix_socket_path=server.unix_socket, protocol=2), tmp_path))
        return made[-1]

    yield make
    for scene in made:
        scene.close()
        scene.raw.close()


@pytest.fixture
def peer(server: EmbeddedServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a consumer process of the service."""
    started: list[WorkerProcess] = []

    def start(name: str, **job: Any) -> WorkerProcess:
        process = WorkerProcess(
            {"url": server.unix_url, "name": name, **job}, tmp_path / f"{name}.log", "tests.faults.balancer_peer"
        )
        started.append(process)
        if job.get("mode") != "run":
            process.wait_for("ready")
        return process

    yield start
    for process in started:
        process.close()
