"""A server that is busy, or that was told to wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from tests.faults.checker import body
from tests.faults.conftest import Scene
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess

CONFIG = {"min_idle_claim_ms": 4_000, "batch_size": 10}


class EndlessScript:
    """A script that keeps the server busy until it is killed."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._address = server.unix_socket
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> None:
        self._threads.submit(ask, self._address, "EVAL", "while true do end", 0, timeout_s=60)
        eventually(lambda: "BUSY" in str(ask(self._address, "PING")), "the server says that it is busy")

    def __exit__(self, *_: object) -> None:
        ask(self._address, "SCRIPT", "KILL")
        self._threads.shutdown()


@pytest.fixture
def busy(server: EmbeddedServer, raw: redis.Redis) -> EndlessScript:
    raw.config_set("lua-time-limit", 10)
    return EndlessScript(server)


def _refused(worker: WorkerProcess) -> int:
    return worker.log.read_text().count("BUSY")


def test_while_a_script_blocks_the_server_workers_wait_and_nothing_runs_twice(
    half: str, scene: Scene, busy: EndlessScript
) -> None:
    scene.publish(*(body(n, ["sleep", 0.005]) for n in range(400)))
    worker = scene.worker(half, config=CONFIG)
    worker.wait_for("done", count=30)
    with busy:
        eventually(lambda: _refused(worker) >= 2, "the worker was refused")
    scene.check()

    assert [line["attempts"] for line in worker.said("began")] == [1] * 400
    assert not worker.said("event", name="swept")


@pytest.mark.usefixtures("default_server")
def test_what_was_done_while_the_server_was_busy_is_acknowledged_and_not_run_again(
    half: str, scene: Scene, busy: EndlessScript
) -> None:
    gate = scene.gate()
    ids = scene.publish(*(body(n, ["until", gate]) for n in range(5)))
    worker = scene.worker(half, config=CONFIG)
    worker.wait_for("began", count=5)
    with busy:
        scene.open(gate)
        worker.wait_for("done", count=5)
        eventually(lambda: _refused(worker) >= 2, "the worker was refused")
    scene.check()

    assert [line["attempts"] for line in worker.said("began")] == [1] * 5
    assert scene.checker.places().acknowledged == set(ids)


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("what", ["WRITE", "ALL"])
def test_a_pause_shorter_than_the_lease_costs_no_lease_and_no_second_run(what: str, half: str, scene: Scene) -> None:
    gate = scene.gate()
    scene.publish(*(body(n, ["until", gate]) for n in range(30)), *(body(n) for n in range(30, 200)))
    workers = [scene.worker(half, config={**CONFIG, "concurrency": 10}) for _ in range(2)]
    for worker in workers:
        worker.wait_for("began", count=10)
    scene.raw.execute_command("CLIENT", "PAUSE", 2_000, what)
    scene.open(gate)
    scene.check()

    assert sorted(line["n"] for worker in workers for line in worker.said("began")) == list(range(200))
    assert not any(worker.said("event", name="lease_lost") for worker in workers)
    assert not any(worker.said("event", name="reclaimed") for worker in workers)
