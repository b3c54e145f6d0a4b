"""A dead letter that cannot be written: its message stays pending, for better twice than never."""

from __future__ import annotations

import pytest

from tests.faults.checker import body
from tests.faults.conftest import GROUP, STREAM, Scene
from tests.faults.waiting import eventually

DEAD = f"{STREAM}_dlq"


def test_a_dead_letter_stream_of_another_type_stops_the_worker_and_the_message_stays(half: str, scene: Scene) -> None:
    bad, good = scene.publish(body(0, ["raise", "error"]), body(1))
    scene.raw.set(DEAD, "somebody else's")
    worker = scene.worker(half, config={"max_deliveries": 1, "concurrency": 2})

    assert worker.wait() == 3
    assert worker.said("raised")[0]["error"] == "WrongType"
    assert bad in {row["message_id"].decode() for row in scene.checker.pending()}
    assert scene.raw.get(DEAD) == b"somebody else's"

    scene.raw.delete(DEAD)
    scene.worker(half, config={"max_deliveries": 1})
    scene.wait_until_quiet()
    found = scene.checker.check_conserved([bad, good])
    assert set(found.dead) == {bad}
    scene.checker.check_quiet()


def test_a_user_who_may_not_write_dead_letters_loses_no_message(half: str, scene: Scene) -> None:
    bad, good = scene.publish(body(0, ["raise", "fatal"]), body(1))
    scene.raw.execute_command(
        "ACL", "SETUSER", "worker", "reset", "on", ">secret", "+@all", f"~{STREAM}", f"~{{{STREAM}}}:*"
    )
    worker = scene.worker(half, client={"username": "worker", "password": "secret"})

    assert worker.wait() == 3
    assert worker.said("raised")[0]["error"] == "PermissionDenied"
    assert bad in {row["message_id"].decode() for row in scene.checker.pending()} | scene.checker.places().unread

    scene.raw.execute_command("ACL", "SETUSER", "worker", f"~{DEAD}")
    scene.worker(half, client={"username": "worker", "password": "secret"})
    scene.wait_until_quiet()
    found = scene.checker.check_conserved([bad, good])
    assert found.dead == {bad: "fatal"}
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_vanished_entry_leaves_the_pending_list_only_with_its_dead_letter(half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["sleep", 3_600], runs=1))
    dead = scene.worker(half)
    dead.wait_for("began")
    dead.kill()
    scene.raw.xdel(STREAM, entry_id)
    scene.raw.set(DEAD, "somebody else's")
    worker = scene.worker(half)
    eventually(lambda: scene.checker.pending()[0]["time_since_delivered"] > 1_500, "many sweeps went by")
    assert scene.raw.xpending(STREAM, GROUP)["pending"] == 1

    scene.raw.delete(DEAD)
    worker.wait_for("event", name="missing", ids=[entry_id])
    scene.wait_until_quiet()
    scene.checker.check_quiet()
