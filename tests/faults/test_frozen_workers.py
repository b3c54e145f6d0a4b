"""Workers that stand still: those that come back too late, and those that only seem to."""

from __future__ import annotations

import pytest

from tests.faults.checker import body
from tests.faults.conftest import GROUP, LASTING, LEASE_MS, STREAM, Scene
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")


def test_the_late_acknowledgement_of_a_frozen_worker_is_refused(half: str, scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(1, ["until", gate]))
    zombie = scene.worker(half, config={"heartbeat_interval_ms": LEASE_MS // 3})
    zombie.wait_for("began", id=entry_id)
    zombie.freeze()
    heir = scene.worker(half)
    heir.wait_for("began", id=entry_id, attempts=2)

    scene.open(gate)  # the handlers of both go on, that of the zombie as soon as it can
    zombie.thaw()
    zombie.wait_for("event", name="lease_lost", ids=[entry_id])
    heir.wait_for("done", id=entry_id)
    scene.check()

    assert zombie.stop() == 0
    assert zombie.said("stopped")[0]["total_acked"] == 0
    assert zombie.said("stopped")[0]["total_lease_lost"] == 1
    assert heir.stop() == 0
    assert heir.said("stopped")[0]["total_acked"] == 1


def test_the_handler_of_a_worker_that_lost_its_lease_is_cancelled(scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(1, ["until", gate]))
    zombie = scene.worker("async")
    zombie.wait_for("began", id=entry_id)
    zombie.freeze()
    heir = scene.worker("async")
    heir.wait_for("began", id=entry_id, attempts=2)

    zombie.thaw()
    assert zombie.wait_for("cancelled", id=entry_id)["lease_lost"]
    eventually(lambda: scene.checker.pending_count() == 1, "the heir keeps its message")
    scene.open(gate)
    heir.wait_for("done", id=entry_id)
    scene.check()

    assert not zombie.said("done")


def test_a_plain_handler_sees_that_its_lease_is_lost(half: str, scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(1, ["until", gate]))
    zombie = scene.worker(half, is_plain=True)
    zombie.wait_for("began", id=entry_id)
    zombie.freeze()
    heir = scene.worker(half)
    heir.wait_for("began", id=entry_id, attempts=2)

    zombie.thaw()
    zombie.wait_for("event", name="lease_lost", ids=[entry_id])
    scene.open(gate)
    assert zombie.wait_for("done", id=entry_id)["lease_lost"]
    scene.check()


@pytest.mark.parametrize("verdict", ["error", "fatal"])
def test_a_frozen_worker_can_neither_retry_nor_bury_what_it_lost(verdict: str, half: str, scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(1, ["until", gate], ["raise", verdict], runs=1))
    zombie = scene.worker(half)
    zombie.wait_for("began", id=entry_id)
    zombie.freeze()
    heir = scene.worker(half)
    heir.wait_for("done", id=entry_id)
    scene.open(gate)
    zombie.thaw()
    zombie.wait_for("event", name="lease_lost")
    scene.check()

    assert scene.checker.places().acknowledged == {entry_id}
    assert zombie.stop() == 0
    assert scene.raw.exists("orders_dlq") == 0


def test_a_handler_that_computes_for_longer_than_the_lease_keeps_it(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(body(0, ["busy until", gate]), body(1))
    holder = scene.worker(half, config={"concurrency": 1, "batch_size": 2, **LASTING})
    holder.wait_for("began", id=ids[0])
    rival = scene.worker(half, config=LASTING)
    rival.wait_for("ready")

    scene.outlive(4)
    scene.open(gate)
    holder.wait_for("done", id=ids[0])
    scene.check()

    assert len(holder.said("began", id=ids[0])) == 1
    assert not rival.said("event", name="reclaimed")


def test_a_message_that_is_done_keeps_its_lease_while_the_next_handler_blocks_the_event_loop(scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(body(0), body(1, ["busy until", gate]))
    holder = scene.worker("async", config={"concurrency": 1, **LASTING})
    holder.wait_for("began", id=ids[1])
    assert scene.checker.pending_count() == 2, "the first one is done, and nobody has told the server"
    rival = scene.worker("async", config=LASTING)
    rival.wait_for("ready")

    scene.outlive(3)
    scene.open(gate)
    holder.wait_for("done", id=ids[1])
    scene.check()

    assert len(holder.said("began")) == 2
    assert not rival.said("began")


def test_a_frozen_worker_that_held_many_loses_all_of_them_and_none_is_lost(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(*(body(n, ["until", gate]) for n in range(40)))
    zombie = scene.worker(half, config={"batch_size": 40})
    zombie.wait_for("began", count=16)
    zombie.freeze()
    scene.open(gate)
    heir = scene.worker(half)
    heir.wait_for("done", count=40)
    zombie.thaw()
    scene.check()

    assert {line["id"] for line in heir.said("done")} == set(ids)
    assert zombie.stop() == 0
    assert zombie.said("stopped")[0]["total_acked"] == 0


@pytest.mark.parametrize("parked", [0, 10])
def test_an_acknowledgement_never_reaches_a_message_of_another_whatever_else_is_pending(
    parked: int, half: str, scene: Scene
) -> None:
    gate = scene.gate()
    config = {"min_idle_claim_ms": 120_000, "retry_initial_delay_ms": 3_600_000, "retry_max_delay_ms": 3_600_000}
    worker = scene.worker(half, style="batch", config={**config, "batch_size": 60, "prefetch": 60})
    if parked:
        scene.publish(*(body(n, ["raise", "error"]) for n in range(parked)))
        eventually(lambda: scene.raw.zcard("{orders}:retries:billing") == parked, "they wait for their time")
    # With messages behind the batch its acknowledgements travel with a read, many at once.
    ids = scene.publish(*(body(n, ["until", gate]) for n in range(100, 160)), *(body(n) for n in range(160, 500)))
    eventually(lambda: any(line["size"] >= 50 for line in worker.said("batch")), "a large batch is under way")
    stolen = ids[20:30]
    scene.raw.xclaim(STREAM, GROUP, "other", 0, stolen, justid=True)
    scene.open(gate)
    worker.wait_for("done", count=400)
    eventually(lambda: scene.checker.pending_count() == 10 + parked, "all others are acknowledged")

    pending = {row["message_id"].decode() for row in scene.checker.pending() if row["consumer"] == b"other"}
    assert pending == set(stolen)
    assert worker.stop() == 0
    assert worker.said("stopped")[0]["total_lease_lost"] == 10


def test_who_comes_too_late_to_bury_a_message_says_nothing_of_a_dead_letter(half: str, scene: Scene) -> None:
    gate = scene.gate()
    (entry_id,) = scene.publish(body(1, ["until", gate], ["raise", "fatal"]))
    late = scene.worker(half, config={"min_idle_claim_ms": 120_000})
    late.wait_for("began", id=entry_id)
    # Another worker has taken the message over and finished it.
    scene.raw.xclaim(STREAM, GROUP, "other", 0, [entry_id], justid=True)
    scene.raw.xack(STREAM, GROUP, entry_id)
    scene.open(gate)
    late.wait_for("event", name="lease_lost", ids=[entry_id])

    assert late.stop() == 0
    assert late.said("stopped")[0]["total_dlq"] == 0
    assert not late.said("event", name="dead_lettered")
    assert scene.raw.exists(f"{STREAM}_dlq") == 0
