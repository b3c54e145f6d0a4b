"""A server that is killed, comes back, loads its data, or forgets its scripts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest

from penstock import sync
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.testing import TEST_SERVERS, ServerKind
from tests.faults.checker import body
from tests.faults.conftest import LASTING, STREAM, Scene
from tests.faults.waiting import PATIENCE_S, eventually

CONFIG = {"min_idle_claim_ms": 5_000, "batch_size": 20}


class Publishing:
    """A producer in a thread of its own that publishes, one message after the other, until it is told to stop."""

    def __init__(self, scene: Scene, every_s: float = 0.001) -> None:
        self._scene, self._every_s = scene, every_s
        self._stop = threading.Event()
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        n = 0
        with sync.StreamClient.from_url(self._scene.url) as client:
            producer = sync.StreamProducer(client, STREAM)
            while not self._stop.wait(self._every_s):
                try:
                    self._scene.published.append(producer.push(body(n)))
                except Exception as error:
                    self.errors.append(error)
                n += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the producer still publishes"


@pytest.fixture
def durable(
    request: pytest.FixtureRequest, start_server: Callable[..., EmbeddedServer]
) -> Callable[..., EmbeddedServer]:
    """Starts a server that has every write on the disk before it answers.

    With `everysec` a kill may undo the last moments: the server answers before it writes while an fsync is under way.
    """
    kind: ServerKind | None = getattr(request, "param", None)

    def start(**options: str) -> EmbeddedServer:
        return start_server(kind, persistent=True, options={"appendfsync": "always", **options})

    return start


def _has_refused(server: EmbeddedServer) -> bool:
    """Tells whether a server that loads has turned a script of ours away; it answers after every 1,024 commands."""
    try:
        stats = str(ask(server.unix_socket, "INFO", "commandstats"))
    except OSError:
        return False  # not there yet
    return re.search(r"cmdstat_evalsha:\S*rejected_calls=[1-9]", stats) is not None


@pytest.mark.parametrize("durable", TEST_SERVERS, ids=lambda kind: kind.name, indirect=True)
def test_a_killed_server_that_comes_back_has_lost_nothing(
    half: str,
    durable: Callable[..., EmbeddedServer],
    scene_on: Callable[[EmbeddedServer], Scene],
    measured: Callable[[str, object], None],
) -> None:
    server = durable()
    scene = scene_on(server)
    worker = scene.worker(half, config=CONFIG)
    gaps = []
    with Publishing(scene) as publishing:
        for round_number in range(1, 4):
            worker.wait_for("done", count=100 * round_number)
            server.kill()
            server.restart()
            back_at = time.monotonic()
            seen = len(worker.said("done"))
            line = worker.wait_for("done", count=seen + 1)
            gaps.append(max(0.0, line["at"] - back_at))
    scene.check()

    measured("recovered_after_s", gaps)
    assert not publishing.errors, "a producer rides out a restart within its budget"


def test_while_the_server_loads_its_data_everybody_waits(
    half: str, durable: Callable[..., EmbeddedServer], scene_on: Callable[[EmbeddedServer], Scene]
) -> None:
    # A delay in microseconds for each command that is loaded stands for an append-only file of many gigabytes.
    server = durable(**{"key-load-delay": "1000"})
    scene = scene_on(server)
    with scene.raw.pipeline(transaction=False) as pipe:
        for _ in range(10_000):
            pipe.incr("filler")
        pipe.delete("filler").execute()
    worker = scene.worker(half, config=CONFIG)
    with Publishing(scene) as publishing, ThreadPoolExecutor() as threads:
        worker.wait_for("done", count=50)
        server.kill()
        restart = threads.submit(server.restart)
        eventually(lambda: _has_refused(server), "the server says that it loads")
        ask(server.unix_socket, "CONFIG", "SET", "key-load-delay", 0)
        restart.result(PATIENCE_S)
        worker.wait_for("done", count=len(worker.said("done")) + 50)
    scene.check()

    assert not publishing.errors
    assert worker.stop() == 0


@pytest.mark.usefixtures("default_server")
def test_scripts_that_the_server_forgot_are_sent_again(half: str, scene: Scene) -> None:
    worker = scene.worker(half, config=CONFIG)
    with Publishing(scene) as publishing:
        for count in range(20, 400, 20):
            worker.wait_for("done", count=count)
            scene.raw.script_flush()
    scene.check()

    assert not publishing.errors
    assert {line["attempts"] for line in worker.said("began")} == {1}


@pytest.mark.usefixtures("default_server")
def test_every_transition_survives_forgotten_scripts(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(
        body(0, ["raise", "error"], runs=1), body(1, ["raise", "fatal"]), body(2, ["until", gate]), body(3)
    )
    worker = scene.worker(half, config={**LASTING, "retry_initial_delay_ms": 200})
    while len(worker.said("done")) < 2:
        scene.raw.script_flush()
    peer = scene.worker(half, config=LASTING)
    peer.wait_for("ready")
    scene.open(gate)
    while not scene.checker.is_quiet():
        scene.raw.script_flush()

    found = scene.checker.check_conserved(ids)
    assert found.dead == {ids[1]: "fatal"}
    assert [line["attempts"] for line in worker.said("began", id=ids[2])] == [1]
    scene.checker.check_quiet()
