"""Two processes under one name: the newer one has it, and the older one is told and can do no harm."""

from __future__ import annotations

import pytest

from tests.faults.checker import body
from tests.faults.conftest import LASTING, Scene

CODE = 66  # of a process that was killed by its message
NAMED = {**LASTING, "worker_name": "alpha", "shutdown_grace_ms": 300}


def test_the_older_process_under_a_name_is_fenced_off_and_told(half: str, scene: Scene) -> None:
    older = scene.worker(half, config=NAMED)
    scene.publish(body(0))
    older.wait_for("done")
    newer = scene.worker(half, config=NAMED)

    assert older.wait() == 3
    raised = older.said("raised")[0]
    assert raised["error"] == "ConsumerNameTaken"
    assert "alpha" in raised["text"]
    scene.publish(*(body(n) for n in range(1, 10)))
    newer.wait_for("done", count=9)
    scene.check()


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("verdict", ["ok", "error", "fatal"])
def test_what_a_fenced_process_says_about_its_messages_is_refused(verdict: str, half: str, scene: Scene) -> None:
    gate, newer_gate = scene.gate("older"), scene.gate("newer")
    ending = [] if verdict == "ok" else [["raise", verdict]]
    (entry_id,) = scene.publish(
        body(0, ["first", scene.gate("first"), [["until", gate], *ending]], ["until", newer_gate])
    )
    older = scene.worker(half, config=NAMED)
    older.wait_for("first")
    older.freeze()
    newer = scene.worker(half, config=NAMED)
    newer.wait_for("began", id=entry_id)
    scene.open(gate)
    older.thaw()

    assert older.wait() == 3
    assert older.said("raised")[0]["error"] == "ConsumerNameTaken"
    assert scene.checker.pending_count() == 1, "the newer one still holds it"
    assert scene.raw.zcard("{orders}:retries:billing") == 0
    scene.open(newer_gate)
    newer.wait_for("done", id=entry_id)
    scene.wait_until_quiet()
    assert scene.checker.check_conserved([entry_id]).acknowledged == {entry_id}
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_fenced_process_hands_nothing_back_that_the_newer_one_holds(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(*(body(n, ["until", gate]) for n in range(6)))
    older = scene.worker(half, config=NAMED)
    older.wait_for("began", count=6)
    newer = scene.worker(half, config=NAMED)
    third = scene.worker(half, config=LASTING)
    assert older.wait() == 3
    newer.wait_for("began", count=6)
    scene.open(gate)
    newer.wait_for("done", count=6)
    scene.wait_until_quiet()

    assert not third.said("began")
    assert scene.checker.check_conserved(ids).acknowledged == set(ids)
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_process_that_comes_back_under_its_name_takes_up_its_own_messages_at_once(half: str, scene: Scene) -> None:
    ids = scene.publish(*(body(n, ["sleep", 3_600], runs=1) for n in range(4)))
    before = scene.worker(half, config=NAMED)
    before.wait_for("began", count=4)
    before.kill()

    again = scene.worker(half, config=NAMED)
    again.wait_for("began", count=4)

    assert {line["id"] for line in again.said("began")} == set(ids)


@pytest.mark.usefixtures("default_server")
def test_poison_under_a_fixed_name_is_dead_lettered_too(half: str, scene: Scene) -> None:
    poison, *rest = scene.publish(body(0, ["exit", CODE]), *(body(n) for n in range(1, 5)))

    deaths = scene.respawn(half, CODE, config={**NAMED, "concurrency": 1, "max_deliveries": 3})

    assert deaths == 3
    found = scene.checker.check_conserved([poison, *rest])
    assert found.dead == {poison: "max_deliveries"}
    scene.checker.check_handled(scene.workers, found)
    scene.checker.check_quiet()
