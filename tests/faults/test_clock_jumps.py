"""The server's clock is set while work is under way, by libfaketime: without it skipped, in continuous integration failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.testing.servers import FLOOR
from tests.faults.checker import body
from tests.faults.conftest import Scene
from tests.faults.waiting import eventually
from tests.helpers.server_clock import under_a_clock


class Clock:
    """A server whose clock can be set, and nobody else's."""

    def __init__(self, server: EmbeddedServer, file: Path) -> None:
        self.server, self._file = server, file

    def set(self, seconds: int) -> None:
        """Moves the server's clock away from the true time, and returns when it shows."""
        before = self._now()
        self._file.write_text(f"{seconds:+d}")
        eventually(lambda: abs(self._now() - before) > abs(seconds) / 2, "the server's clock has jumped")

    def _now(self) -> int:
        reply = ask(self.server.unix_socket, "TIME")
        assert isinstance(reply, list)
        return int(reply[0])


@pytest.fixture
def clock(start_server: Callable[..., EmbeddedServer], tmp_path: Path) -> Clock:
    file = tmp_path / "clock"
    with under_a_clock(file):
        server = start_server(FLOOR)
    return Clock(server, file)


@pytest.mark.parametrize("seconds", [3_600, -60])
def test_a_clock_that_jumps_loses_nothing_and_every_further_run_is_in_the_books(
    seconds: int, half: str, clock: Clock, scene_on: Callable[[EmbeddedServer], Scene]
) -> None:
    scene = scene_on(clock.server)
    gate = scene.gate()
    scene.publish(*(body(n, ["until", gate]) for n in range(20)), *(body(n) for n in range(20, 100)))
    workers = [scene.worker(half, config={"concurrency": 12, "max_deliveries": 10}) for _ in range(2)]
    eventually(lambda: sum(len(worker.said("began")) for worker in workers) >= 12, "handlers run")

    clock.set(seconds)
    scene.open(gate)
    scene.publish(*(body(n) for n in range(100, 200)))
    scene.check()

    assert len(scene.checker.places().acknowledged) == 200


def test_after_a_jump_forwards_messages_of_dead_workers_are_still_recovered(
    half: str, clock: Clock, scene_on: Callable[[EmbeddedServer], Scene]
) -> None:
    scene = scene_on(clock.server)
    clock.set(3_600)
    scene.publish(*(body(n, ["sleep", 3_600], runs=1) for n in range(5)))
    dead = scene.worker(half)
    dead.wait_for("began", count=5)
    dead.kill()

    scene.worker(half)
    scene.check()
