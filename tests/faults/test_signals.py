"""SIGTERM and SIGINT: the first asks, the second ends; messages are never stranded."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from penstock.redis.embedded import EmbeddedServer
from tests.faults.checker import body
from tests.faults.conftest import LASTING, Scene
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")

HOURS = 3_600
# After a second SIGINT Python raises KeyboardInterrupt, as it does everywhere, and ends with it.
ENDED_BY = {signal.SIGTERM: {-signal.SIGTERM}, signal.SIGINT: {-signal.SIGINT, 130}}


def test_sigterm_lets_the_handler_finish_and_hands_the_rest_back(half: str, scene: Scene) -> None:
    gate = scene.gate()
    first, *rest = scene.publish(body(0, ["until", gate]), *(body(n) for n in range(1, 30)))
    worker = scene.worker(half, config={"concurrency": 1, "batch_size": 30})
    worker.wait_for("began", id=first)

    worker.send(signal.SIGTERM)
    worker.wait_for("event", name="handed_back")
    scene.open(gate)

    assert worker.wait() == 0
    assert [line["id"] for line in worker.said("done")] == [first]
    assert worker.said("stopped")[0]["total_handed_back"] == len(rest)
    successor = scene.worker(half, config={"min_idle_claim_ms": 60_000})
    successor.wait_for("done", count=len(rest))
    assert {line["attempts"] for line in successor.said("began")} == {1}, "a hand-back burns no attempt"
    assert {line["deliveries"] for line in successor.said("began")} == {1}
    scene.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_that_outlasts_the_grace_is_handed_back(number: signal.Signals, half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["sleep", HOURS], runs=1))
    worker = scene.worker(half, config={"shutdown_grace_ms": 200})
    worker.wait_for("began")

    worker.send(number)

    assert worker.wait() == 0
    assert not worker.said("done")
    (pending,) = scene.checker.pending()
    assert pending["times_delivered"] == 0, "a hand-back burns no delivery"
    assert scene.raw.zscore("{orders}:retries:billing", entry_id) is not None, "at hand for whoever comes first"


def test_a_plain_handler_that_hangs_does_not_keep_the_process_from_ending(scene: Scene) -> None:
    scene.publish(body(0, ["sleep", HOURS]))
    worker = scene.worker("async", is_plain=True, config={"shutdown_grace_ms": 200})
    worker.wait_for("began")

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert scene.checker.pending_count() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_and_the_messages_are_reclaimable(
    number: signal.Signals, half: str, scene: Scene
) -> None:
    ids = scene.publish(*(body(n, ["first", scene.gate(f"first-{n}"), [["sleep", HOURS]]]) for n in range(3)))
    worker = scene.worker(half, config={"shutdown_grace_ms": HOURS * 1_000, "block_ms": 60_000})
    worker.wait_for("first", count=3)
    eventually(lambda: _is_reading(scene), "the worker waits for more")

    worker.send(number)
    eventually(lambda: not _is_reading(scene), "the first signal has been heard")
    worker.send(number)

    assert worker.wait() in ENDED_BY[number]
    heir = scene.worker(half)
    heir.wait_for("done", count=3)
    assert {line["id"] for line in heir.said("done")} == set(ids)
    scene.check()


def test_an_idle_worker_ends_without_waiting_for_messages(half: str, scene: Scene) -> None:
    scene.publish(body(0))
    worker = scene.worker(half, config={"block_ms": 600_000})
    worker.wait_for("done")
    scene.wait_until_quiet()
    eventually(lambda: _is_reading(scene), "the worker waits for messages")

    assert worker.stop() == 0  # which waits for less long than block_ms
    scene.check()


def test_a_worker_ends_though_redis_is_away(
    half: str, start_server: Callable[..., EmbeddedServer], scene_on: Callable[[EmbeddedServer], Scene]
) -> None:
    server = start_server(persistent=True)
    scene = scene_on(server)
    (entry_id,) = scene.publish(body(0, ["first", scene.gate(), [["sleep", HOURS]]]))
    worker = scene.worker(half, config={"shutdown_grace_ms": 200})
    worker.wait_for("first")
    server.kill()

    assert worker.stop() == 0

    server.restart()
    heir = scene.worker(half)
    heir.wait_for("done", id=entry_id)
    scene.check()


def test_what_a_stopping_worker_holds_keeps_its_lease_until_it_is_handed_back(half: str, scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(0, ["until", gate]))
    worker = scene.worker(half, config={"shutdown_grace_ms": 60_000, **LASTING})
    worker.wait_for("began")
    rival = scene.worker(half, config=LASTING)
    rival.wait_for("ready")

    worker.send(signal.SIGTERM)
    scene.outlive(3)
    scene.open(gate)

    assert worker.wait() == 0
    assert [line["id"] for line in worker.said("done")] == [entry_id]
    assert not rival.said("began")
    scene.check()


def _is_reading(scene: Scene) -> bool:
    return int(scene.raw.info("clients")["blocked_clients"]) > 0
