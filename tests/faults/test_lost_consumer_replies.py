"""Workers over a link that loses replies: the server has done what it was told, and the worker finds out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.redis.scripts import script
from penstock.testing import Fault, FaultProxy
from tests.faults.checker import body
from tests.faults.conftest import LASTING, LEASE_MS, Scene
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess

pytestmark = pytest.mark.usefixtures("default_server")

# A lease so long that nothing in these tests is recovered by it: the worker that lost a reply helps itself.
LONG = {"min_idle_claim_ms": 120_000, "retry_initial_delay_ms": 20}


@pytest.fixture
def lose(scene: Scene, fault_proxy: FaultProxy) -> Callable[..., Fault]:
    """Loses the reply to the nth call of a script."""
    scene.load_scripts()

    def arm(name: str, nth: int = 1) -> Fault:
        return fault_proxy.drop_reply("EVALSHA", nth, containing=script(name).sha.encode())

    return arm


def _begun(worker: WorkerProcess) -> list[int]:
    return [line["attempts"] for line in worker.said("began")]


@pytest.mark.parametrize("ending", ["close", "reset", "black_hole"])
def test_messages_of_a_lost_read_are_handled_by_the_same_worker_at_once(
    ending: str, half: str, scene: Scene, fault_proxy: FaultProxy, measured: Callable[[str, object], None]
) -> None:
    ids = scene.publish(*(body(n) for n in range(5)))
    fault = fault_proxy.drop_reply("XREADGROUP", ending=ending)
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()

    worker.wait_for("done", count=5)
    measured("handled_after_s", worker.said("done")[-1]["at"] - worker.said("ready")[0]["at"])
    scene.check()

    assert {line["id"] for line in worker.said("done")} == set(ids)


def test_a_lost_read_burns_no_attempt(half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    ids = scene.publish(*(body(n) for n in range(5)))
    fault_proxy.drop_reply("XREADGROUP")
    worker = scene.worker(half, url=fault_proxy.url, config={**LONG, "max_deliveries": 1})

    worker.wait_for("done", count=5)
    scene.check()

    assert _begun(worker) == [1] * 5
    assert scene.checker.places().acknowledged == set(ids)


def test_a_lost_acknowledgement_is_not_a_second_run(half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    scene.load_scripts()
    ids = scene.publish(*(body(n) for n in range(3)))
    fault = fault_proxy.drop_reply("EVALSHA", containing=ids[0].encode())
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()
    scene.check()

    assert worker.stop() == 0
    assert _begun(worker) == [1, 1, 1]
    assert worker.said("stopped")[0]["total_acked"] == 3
    assert worker.said("stopped")[0]["total_lease_lost"] == 0


def test_acknowledgements_survive_one_broken_connection_after_the_other(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    scene.load_scripts()
    ids = scene.publish(*(body(n) for n in range(3)))
    faults = [fault_proxy.drop_reply("EVALSHA", containing=ids[0].encode()) for _ in range(3)]
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert all(fault.wait() for fault in faults)
    scene.check()

    assert worker.stop() == 0
    assert _begun(worker) == [1, 1, 1]


def test_a_lost_reply_to_a_retry_is_one_retry(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    scene.publish(body(1, ["raise", "error"], runs=1))
    fault = lose("streams/park")
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()
    scene.check()

    assert _begun(worker) == [1, 2]


def test_a_lost_reply_to_the_beginning_of_a_run_counts_one_run(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    scene.publish(body(1, ["raise", "error"], runs=1))
    fault = lose("streams/begin")
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()
    scene.check()

    assert _begun(worker) == [1, 2]


def test_a_lost_reply_to_the_dead_lettering_writes_one_dead_letter(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    (entry_id,) = scene.publish(body(1, ["raise", "fatal"]))
    fault = lose("streams/dead_letter")
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()
    scene.wait_until_quiet()

    found = scene.checker.check_conserved([entry_id])
    assert found.dead == {entry_id: "fatal"}
    assert worker.stop() == 0
    assert worker.said("stopped")[0]["total_dlq"] == 1
    scene.checker.check_quiet()


def test_due_messages_whose_hand_out_was_lost_are_handled_by_the_same_worker(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    ids = scene.publish(*(body(n, ["first", scene.gate(f"{n}"), [["sleep", 3_600]]]) for n in range(3)))
    first = scene.worker(half, config={**LONG, "shutdown_grace_ms": 0})
    first.wait_for("first", count=3)
    assert first.stop() == 0
    fault = lose("streams/take_due")

    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert fault.wait()
    worker.wait_for("done", count=3)
    scene.check()

    assert worker.said("event", name="swept")[0]["ids"] == ids
    assert _begun(worker) == [1, 1, 1], "handed back before the run: no attempt is burnt"


def test_recovered_messages_whose_hand_out_was_lost_are_handled_by_the_same_worker(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    ids = scene.publish(*(body(n, ["first", scene.gate(f"{n}"), [["sleep", 3_600]]]) for n in range(3)))
    dead = scene.worker(half)
    dead.wait_for("first", count=3)
    dead.kill()
    eventually(lambda: _idle_ms(scene) > LEASE_MS, "the lease is over")
    fault = lose("streams/recover")

    worker = scene.worker(half, url=fault_proxy.url)
    assert fault.wait()
    worker.wait_for("done", count=3)
    scene.check()

    assert worker.said("event", name="swept")[0]["ids"] == ids
    assert {line["id"] for line in worker.said("began")} == set(ids)


def test_a_lost_hand_out_is_swept_up_though_the_reader_waits_for_messages(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    scene.publish(body(1, ["raise", "error"], runs=1))
    worker = scene.worker(half, url=fault_proxy.url, config={**LONG, "block_ms": 60_000, "retry_initial_delay_ms": 500})
    worker.wait_for("failed")
    eventually(lambda: scene.raw.zcard("{orders}:retries:billing"), "the message waits for its time")
    # The next call that finds it due is the one whose reply is lost.
    due_at = scene.raw.zrange("{orders}:retries:billing", 0, 0, withscores=True)[0][1]
    eventually(lambda: _now_ms(scene) > due_at - 50, "it is nearly due")
    fault = lose("streams/take_due")
    assert fault.wait()

    worker.wait_for("done")
    scene.check()


def test_a_sweep_whose_reply_is_lost_is_done_again(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    scene.publish(*(body(n) for n in range(5)))
    faults = [fault_proxy.drop_reply("XREADGROUP"), lose("streams/take")]
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)
    assert all(fault.wait() for fault in faults)

    worker.wait_for("done", count=5)
    scene.check()


def test_lost_heartbeats_cost_no_lease(
    half: str, scene: Scene, lose: Callable[..., Fault], fault_proxy: FaultProxy
) -> None:
    gate = scene.gate()
    scene.publish(*(body(n, ["until", gate]) for n in range(3)))
    faults = [lose("streams/renew", nth) for nth in (1, 2, 3)]
    worker = scene.worker(half, url=fault_proxy.url, config=LASTING)
    worker.wait_for("began", count=3)
    rival = scene.worker(half, config=LASTING)
    assert all(fault.wait() for fault in faults)
    scene.open(gate)
    scene.check()

    assert _begun(worker) + _begun(rival) == [1, 1, 1]


def test_a_worker_starts_over_a_link_that_breaks_again_and_again(
    half: str, scene: Scene, fault_proxy: FaultProxy
) -> None:
    for command in ("CLIENT", "SCRIPT", "XPENDING", "EVALSHA", "EVALSHA", "XREADGROUP"):
        fault_proxy.drop_reply(command)
    ids = scene.publish(*(body(n) for n in range(3)))
    worker = scene.worker(half, url=fault_proxy.url, config=LONG)

    worker.wait_for("done", count=3)
    scene.check()

    assert scene.checker.places().acknowledged == set(ids)


def test_resets_at_any_moment_lose_nothing(half: str, scene: Scene, fault_proxy: FaultProxy) -> None:
    scene.publish(*(body(n, ["sleep", 0.001]) for n in range(300)))
    worker = scene.worker(half, url=fault_proxy.url, config={"batch_size": 10})
    for count in range(20, 300, 20):
        worker.wait_for("done", count=count)
        fault_proxy.reset_all()
    scene.check()


def _idle_ms(scene: Scene) -> int:
    return min(int(row["time_since_delivered"]) for row in scene.checker.pending())


def _now_ms(scene: Scene) -> float:
    seconds, micros = scene.raw.time()
    return float(seconds * 1_000 + micros / 1_000)
