"""Rights and passwords that change while work is under way."""

from __future__ import annotations

import pytest

from penstock.errors import AuthenticationFailed, PermissionDenied
from tests.faults.checker import body
from tests.faults.conftest import STREAM, Scene
from tests.faults.producers import push
from tests.faults.waiting import eventually

SECRET, NEWER = "canary-7f3a", "canary-91bc"
LOGIN = {"username": "worker", "password": SECRET}


@pytest.fixture(autouse=True)
def _user(scene: Scene) -> None:
    scene.raw.execute_command("ACL", "SETUSER", "worker", "reset", "on", f">{SECRET}", "~*", "&*", "+@all")


def _everything_said(scene: Scene) -> str:
    return "".join(worker.log.read_text() + worker.story() for worker in scene.workers)


@pytest.mark.parametrize("right", ["xreadgroup", "evalsha"])
def test_a_worker_that_loses_a_right_stops_with_the_reason_and_strands_nothing(
    right: str, half: str, scene: Scene
) -> None:
    ids = scene.publish(*(body(n) for n in range(10)))
    worker = scene.worker(half, client=LOGIN)
    worker.wait_for("done", count=10)
    scene.raw.execute_command("ACL", "SETUSER", "worker", f"-{right}")
    ids += scene.publish(*(body(n) for n in range(10, 20)))

    assert worker.wait() == 3
    assert worker.said("raised")[0]["error"] == "PermissionDenied"
    scene.raw.execute_command("ACL", "SETUSER", "worker", f"+{right}")
    scene.worker(half, client=LOGIN)
    scene.wait_until_quiet()

    found = scene.checker.check_conserved(ids)
    assert found.acknowledged == set(ids)
    scene.checker.check_handled(scene.workers, found)
    assert SECRET not in _everything_said(scene)


def test_a_producer_without_the_right_is_told_by_name(half: str, scene: Scene) -> None:
    url = scene.url.replace("unix://", f"unix://worker:{SECRET}@")
    push(half, url, STREAM, body(0))
    scene.raw.execute_command("ACL", "SETUSER", "worker", "-xadd")

    with pytest.raises(PermissionDenied) as failure:
        push(half, url, STREAM, body(1))

    assert scene.raw.xlen(STREAM) == 1
    assert SECRET not in f"{failure.value!r} {failure.value}"


@pytest.mark.usefixtures("default_server")
def test_a_password_that_was_changed_is_refused_by_name_and_the_new_one_goes_on(half: str, scene: Scene) -> None:
    ids = scene.publish(*(body(n) for n in range(5)))
    worker = scene.worker(half, client=LOGIN)
    worker.wait_for("done", count=5)
    scene.wait_until_quiet()
    scene.raw.execute_command("ACL", "SETUSER", "worker", f"<{SECRET}", f">{NEWER}")
    scene.raw.execute_command("CLIENT", "KILL", "USER", "worker")

    assert worker.wait() == 3
    assert worker.said("raised")[0]["error"] == "AuthenticationFailed"
    ids += scene.publish(*(body(n) for n in range(5, 10)))
    successor = scene.worker(half, client={**LOGIN, "password": NEWER})
    successor.wait_for("done", count=5)
    scene.wait_until_quiet()

    assert scene.checker.check_conserved(ids).acknowledged == set(ids)
    said = _everything_said(scene)
    assert SECRET not in said
    assert NEWER not in said


@pytest.mark.usefixtures("default_server")
def test_a_changed_password_does_not_touch_connections_that_are_open(half: str, scene: Scene) -> None:
    scene.publish(body(0))
    worker = scene.worker(half, client=LOGIN)
    worker.wait_for("done")
    scene.raw.execute_command("ACL", "SETUSER", "worker", f"<{SECRET}", f">{NEWER}")
    scene.publish(body(1))
    worker.wait_for("done", count=2)
    scene.check()


@pytest.mark.usefixtures("default_server")
def test_a_wrong_password_is_refused_by_name_without_repeating_it(half: str, scene: Scene) -> None:
    url = scene.url.replace("unix://", f"unix://worker:{NEWER}@")

    with pytest.raises(AuthenticationFailed) as failure:
        push(half, url, STREAM, body(0))

    assert NEWER not in f"{failure.value!r} {failure.value}"


@pytest.mark.usefixtures("default_server")
def test_messages_that_were_running_when_the_right_went_are_reclaimable(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(*(body(n, ["until", gate]) for n in range(3)))
    worker = scene.worker(half, client=LOGIN, config={"shutdown_grace_ms": 500})
    worker.wait_for("began", count=3)
    scene.raw.execute_command("ACL", "SETUSER", "worker", "reset", "on", f">{SECRET}")
    eventually(lambda: not worker.is_alive(), "it stopped")
    scene.open(gate)

    heir = scene.worker(half)
    heir.wait_for("done", count=3)
    scene.wait_until_quiet()
    assert scene.checker.check_conserved(ids).acknowledged == set(ids)
