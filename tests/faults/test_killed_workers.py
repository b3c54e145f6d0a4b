"""Workers that die: what they held goes to others, once, and nobody's neighbours suffer."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.checker import body
from tests.faults.conftest import LASTING, Scene

pytestmark = pytest.mark.usefixtures("default_server")


def test_messages_of_a_killed_worker_are_handled_by_another_after_the_lease(
    half: str, scene: Scene, measured: Callable[[str, object], None]
) -> None:
    gate = scene.gate()
    ids = scene.publish(*(body(n, ["until", gate], runs=1) for n in range(5)))
    victim = scene.worker(half)
    victim.wait_for("began", count=5)
    heir = scene.worker(half)
    heir.wait_for("ready")
    killed_at = time.monotonic()
    assert victim.kill() == -signal.SIGKILL

    heir.wait_for("done", count=5)

    assert {line["id"] for line in heir.said("began", attempts=2, deliveries=2)} == set(ids)
    measured("recovered_after_s", heir.said("began")[-1]["at"] - killed_at)
    assert heir.said("event", name="reclaimed")
    scene.check()


def test_a_live_worker_is_never_robbed(half: str, scene: Scene) -> None:
    gate = scene.gate()
    scene.publish(*(body(n, ["until", gate]) for n in range(4)))
    holder = scene.worker(half, config=LASTING)
    holder.wait_for("began", count=4)
    scene.worker(half, config=LASTING).wait_for("ready")

    scene.outlive(4)
    scene.open(gate)
    scene.check()

    assert len(holder.said("began")) == 4
    assert not any(worker.said("event", name="reclaimed") for worker in scene.workers)


def test_death_between_the_effect_and_the_acknowledgement_gives_one_redelivery_and_one_result(
    half: str, scene: Scene
) -> None:
    result = scene.gate("result")
    (entry_id,) = scene.publish(body(1, ["result", result], ["first", scene.gate("first"), [["die"]]]))
    first = scene.worker(half)
    assert first.wait() == -signal.SIGKILL
    second = scene.worker(half)
    second.wait_for("done", id=entry_id)
    scene.check()

    assert [line["attempts"] for worker in (first, second) for line in worker.said("began")] == [1, 2]
    results = [line["is_first"] for worker in (first, second) for line in worker.said("result")]
    assert results == [True, False], "the second run finds the result of the first"


def test_a_chain_of_killed_workers_loses_nothing(half: str, scene: Scene) -> None:
    ids = scene.publish(*(body(n, ["sleep", 0.02]) for n in range(60)))
    for _ in range(3):
        victim = scene.worker(half, config={"max_deliveries": 10, "concurrency": 2, "batch_size": 5})
        victim.wait_for("done", count=3)
        victim.kill()
    scene.worker(half, config={"max_deliveries": 10})
    scene.check()

    assert scene.checker.places().acknowledged == set(ids)
