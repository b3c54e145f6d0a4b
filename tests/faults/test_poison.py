"""Messages that kill the process of whoever handles them."""

from __future__ import annotations

import pytest

from tests.faults.checker import body
from tests.faults.conftest import Scene

pytestmark = pytest.mark.usefixtures("default_server")

CODE = 66  # of a process that was killed by its message


def _check_only_the_poison_is_dead(scene: Scene, poison: str) -> None:
    found = scene.checker.check_conserved(scene.published)
    assert found.dead == {poison: "max_deliveries"}
    assert found.acknowledged == set(scene.published) - {poison}
    scene.checker.check_handled(scene.workers, found)
    scene.checker.check_quiet()


@pytest.mark.parametrize("position", [0, 39])
def test_poison_in_a_batch_is_dead_lettered_and_takes_no_neighbour_along(
    position: int, half: str, scene: Scene
) -> None:
    bodies = [body(n) for n in range(40)]
    bodies[position] = body(position, ["exit", CODE])
    ids = scene.publish(*bodies)

    deaths = scene.respawn(half, CODE, style="batch", config={"batch_size": 10, "prefetch": 40, "max_deliveries": 3})

    assert deaths == 3
    _check_only_the_poison_is_dead(scene, ids[position])


def test_a_handler_that_calls_sys_exit_is_given_up_like_one_that_kills_its_process(half: str, scene: Scene) -> None:
    ids = scene.publish(body(0), body(1, ["leave", CODE]), *(body(n) for n in range(2, 10)))

    scene.respawn(half, CODE, config={"batch_size": 5, "max_deliveries": 3})

    assert [len(worker.said("began", id=ids[1])) for worker in scene.workers][:3] == [1, 1, 1]
    assert scene.workers[2].wait() == CODE
    _check_only_the_poison_is_dead(scene, ids[1])


def test_poison_kills_nobody_who_runs_beside_it(half: str, scene: Scene) -> None:
    ids = scene.publish(body(0, ["sleep", 0.05], ["exit", CODE]), *(body(n, ["sleep", 0.15]) for n in range(1, 8)))

    deaths = scene.respawn(half, CODE, config={"concurrency": 8, "max_deliveries": 3})

    assert deaths == 3
    _check_only_the_poison_is_dead(scene, ids[0])


def test_two_poisons_kill_nobody_who_runs_beside_them(half: str, scene: Scene) -> None:
    deadly = [["sleep", 0.05], ["exit", CODE]]
    bodies = [body(n, ["sleep", 0.1]) for n in range(8)]
    bodies[1], bodies[6] = body(1, *deadly), body(6, *deadly)
    ids = scene.publish(*bodies)

    scene.respawn(half, CODE, config={"concurrency": 8, "max_deliveries": 3})

    found = scene.checker.check_conserved(scene.published)
    assert found.dead == {ids[1]: "max_deliveries", ids[6]: "max_deliveries"}
    scene.checker.check_handled(scene.workers, found)
    scene.checker.check_quiet()


def test_messages_that_never_began_beside_poison_keep_their_attempts(scene: Scene) -> None:
    # Of the async half alone: with threads, a neighbour may be recorded before the thread has called the handler.
    ids = scene.publish(body(0, ["exit", CODE]), *(body(n) for n in range(1, 8)))

    scene.respawn("async", CODE, config={"concurrency": 8, "max_deliveries": 3})

    # The server counts a message that it hands out for the first time. From then on only a handler that begins counts.
    for entry_id in ids[1:]:
        begun = [line["attempts"] for worker in scene.workers for line in worker.said("began", id=entry_id)]
        assert begun == list(range(2, 2 + len(begun)))
    _check_only_the_poison_is_dead(scene, ids[0])


def test_a_last_run_that_poison_ends_beside_it_is_repeated_alone(half: str, scene: Scene) -> None:
    never = scene.gate("never")
    twice_failed = [["first", scene.gate(f"run {n}"), [["raise", "error"]]] for n in (1, 2)]
    job = {"config": {"concurrency": 2, "max_deliveries": 3}}
    [innocent] = scene.publish(body(0, *twice_failed, ["first", scene.gate("run 3"), [["until", never]]]))
    worker = scene.worker(half, **job)
    assert worker.wait_for("began", 3, id=innocent)["attempts"] == 3
    [poison] = scene.publish(body(1, ["exit", CODE]))
    assert worker.wait() == CODE

    assert scene.respawn(half, CODE, **job) == 2

    assert [line["attempts"] for other in scene.workers[1:] for line in other.said("began", id=innocent)] == [3]
    _check_only_the_poison_is_dead(scene, poison)


def test_a_message_that_merely_fails_often_does_not_hold_up_its_neighbours(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(
        body(0, ["until", gate]),
        body(1, ["raise", "error"]),
        *(body(n) for n in range(2, 6)),
    )
    worker = scene.worker(half, config={"concurrency": 4, "max_deliveries": 3})
    worker.wait_for("event", name="dead_lettered", id=ids[1])
    worker.wait_for("done", count=4)
    scene.open(gate)
    scene.wait_until_quiet()

    assert scene.checker.check_conserved(ids).dead == {ids[1]: "max_deliveries"}
    scene.checker.check_quiet()
