"""Handlers that raise, hang or never come back."""

from __future__ import annotations

import itertools

import pytest

from tests.faults.checker import body
from tests.faults.conftest import LEASE_MS, Scene

pytestmark = pytest.mark.usefixtures("default_server")

HOURS = 3_600


@pytest.mark.parametrize("style", ["message", "batch"])
def test_a_failing_message_is_retried_with_growing_delays_and_then_dead(style: str, half: str, scene: Scene) -> None:
    bad, good = scene.publish(body(0, ["raise", "error"]), body(1))
    config = {"max_deliveries": 4, "retry_initial_delay_ms": 100, "retry_jitter": 0, "batch_size": 1}
    worker = scene.worker(half, style=style, config=config)
    worker.wait_for("event", name="dead_lettered", id=bad, reason="max_deliveries")
    scene.wait_until_quiet()

    runs = worker.said("began", id=bad)
    assert [line["attempts"] for line in runs] == [1, 2, 3, 4]
    delays = [later["at"] - earlier["at"] for earlier, later in itertools.pairwise(runs)]
    assert all(delay >= least for delay, least in zip(delays, (0.1, 0.2, 0.4), strict=True)), delays
    found = scene.checker.check_conserved(scene.published)
    assert found.dead == {bad: "max_deliveries"}
    assert found.acknowledged == {good}
    scene.checker.check_quiet()


def test_the_dead_letter_tells_the_whole_story(half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["raise", "error", "no such customer"]))
    worker = scene.worker(half, config={"max_deliveries": 2})
    worker.wait_for("event", name="dead_lettered")
    scene.wait_until_quiet()

    ((_, record),) = scene.raw.xrange("orders_dlq")
    original = scene.raw.xrange("orders")[0][1]
    assert {key: record[key] for key in original} == original, "the payload is as the producer wrote it"
    told = {key.decode(): value.decode() for key, value in record.items() if key.startswith(b"dlq_")}
    assert told.pop("dlq_time").isdigit()
    assert told.pop("dlq_traceback").endswith("ValueError: no such customer\n")
    assert told == {
        "dlq_reason": "max_deliveries",
        "dlq_source": "orders",
        "dlq_id": entry_id,
        "dlq_group": "billing",
        "dlq_consumer": worker.said("ready")[0]["name"],
        "dlq_error": "ValueError",
        "dlq_error_text": "no such customer",
        "dlq_attempts": "2",
        "dlq_deliveries": "2",
    }


def test_a_handler_beyond_its_time_is_interrupted_retried_and_then_dead(scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["sleep", HOURS]))
    worker = scene.worker("async", config={"max_deliveries": 2, "handler_timeout_ms": 150})
    worker.wait_for("event", name="dead_lettered", id=entry_id, reason="max_deliveries")
    scene.wait_until_quiet()

    assert len(worker.said("cancelled", id=entry_id)) == 2
    assert scene.raw.xrange("orders_dlq")[0][1][b"dlq_error"] == b"HandlerTimeout"
    scene.checker.check_quiet()


def test_a_hung_handler_that_cannot_be_interrupted_loses_its_lease(half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["first", scene.gate(), [["sleep", HOURS]]]))
    hung = scene.worker(half, is_plain=True, config={"handler_timeout_ms": LEASE_MS})
    hung.wait_for("first")
    scene.worker(half)
    scene.check()

    runs = [line["attempts"] for worker in scene.workers for line in worker.said("began", id=entry_id)]
    assert runs == [1, 2]


@pytest.mark.parametrize("verdict", ["later", "snooze"])
def test_a_handler_may_choose_the_delay_itself(verdict: str, half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["until", scene.gate("now")], ["raise", verdict], runs=1))
    worker = scene.worker(half, config={"retry_initial_delay_ms": 60_000, "max_deliveries": 3})
    worker.wait_for("began")
    scene.open(scene.gate("now"))
    if verdict == "later":
        worker.wait_for("done", id=entry_id)
        scene.check()
        assert [line["attempts"] for line in worker.said("began")] == [1, 2]
    else:
        worker.wait_for("began", count=5)
        assert {line["attempts"] for line in worker.said("began")} == {1}, "a snooze burns no attempt"
        assert scene.raw.exists("orders_dlq") == 0


def test_one_failing_message_of_a_batch_does_not_fail_the_others_for_good(half: str, scene: Scene) -> None:
    bodies = [body(n) for n in range(10)]
    bodies[4] = body(4, ["raise", "error"])
    ids = scene.publish(*bodies)
    scene.worker(half, style="batch", config={"max_deliveries": 3})
    scene.wait_until_quiet()

    found = scene.checker.check_conserved(ids)
    assert found.dead == {ids[4]: "max_deliveries"}
    scene.checker.check_quiet()
