"""Somebody deletes the group, the stream, everything, or single entries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.checker import body
from tests.faults.conftest import GROUP, STREAM, Scene
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess


def _done(worker: WorkerProcess) -> list[int]:
    return sorted(line["n"] for line in worker.said("done"))


def test_a_destroyed_group_is_created_again_where_it_was_and_an_alarm_is_raised(half: str, scene: Scene) -> None:
    scene.publish(*(body(n) for n in range(50)))
    worker = scene.worker(half)
    worker.wait_for("done", count=50)
    scene.wait_until_quiet()
    _wait_for_the_record(scene)

    scene.raw.xgroup_destroy(STREAM, GROUP)
    worker.wait_for("event", name="group_lost")
    scene.publish(*(body(n) for n in range(50, 60)))
    worker.wait_for("done", count=60)
    scene.wait_until_quiet()

    assert _done(worker) == list(range(60)), "nothing twice, nothing skipped"
    scene.checker.check_conserved(scene.published)
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_group_that_is_destroyed_under_running_handlers_loses_nothing(half: str, scene: Scene) -> None:
    gate = scene.gate()
    scene.publish(*(body(n) for n in range(20)), *(body(n, ["until", gate]) for n in range(20, 25)))
    worker = scene.worker(half, config={"min_idle_claim_ms": 60_000})
    worker.wait_for("began", count=25)
    eventually(lambda: scene.checker.pending_count() == 5, "the others are acknowledged")
    _wait_for_the_record(scene)

    scene.raw.xgroup_destroy(STREAM, GROUP)
    worker.wait_for("event", name="group_lost")
    scene.open(gate)
    scene.wait_until_quiet()

    assert _done(worker) == list(range(25)), "those that ran while the group was away are not run again"
    found = scene.checker.check_conserved(scene.published)
    scene.checker.check_handled([worker], found)
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_message_that_waits_for_its_retry_survives_the_destruction_of_its_group(half: str, scene: Scene) -> None:
    gate = scene.gate()
    ids = scene.publish(body(0, ["raise", "later"], runs=1), *(body(n) for n in range(1, 10)))
    worker = scene.worker(half)
    worker.wait_for("done", count=10)
    scene.wait_until_quiet()
    _wait_for_the_record(scene)
    late = scene.publish(body(10, ["until", gate], ["raise", "error"], runs=1))
    worker.wait_for("began", n=10)
    scene.raw.xgroup_destroy(STREAM, GROUP)
    worker.wait_for("event", name="group_lost")
    scene.open(gate)
    scene.wait_until_quiet()

    assert {line["id"] for line in worker.said("done")} == {*ids, *late}
    scene.checker.check_conserved(scene.published)
    scene.checker.check_quiet()


def test_a_deleted_stream_begins_anew(half: str, scene: Scene) -> None:
    scene.publish(*(body(n) for n in range(10)))
    worker = scene.worker(half)
    worker.wait_for("done", count=10)
    scene.wait_until_quiet()

    scene.raw.delete(STREAM)
    worker.wait_for("event", name="group_lost")
    after = scene.publish(*(body(n) for n in range(10, 20)))
    worker.wait_for("done", count=20)
    scene.wait_until_quiet()

    assert _done(worker) == list(range(20))
    scene.checker.check_conserved(after)
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_after_flushall_everybody_goes_on(half: str, scene: Scene) -> None:
    scene.publish(*(body(n) for n in range(10)))
    worker = scene.worker(half)
    worker.wait_for("done", count=10)
    scene.wait_until_quiet()

    scene.raw.flushall()
    worker.wait_for("event", name="group_lost")
    after = scene.publish(*(body(n) for n in range(10, 20)))
    worker.wait_for("done", count=20)
    scene.wait_until_quiet()

    scene.checker.check_conserved(after)
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_entries_that_were_published_before_the_stream_came_back_are_not_skipped(half: str, scene: Scene) -> None:
    scene.publish(*(body(n) for n in range(10)))
    worker = scene.worker(half)
    worker.wait_for("done", count=10)
    scene.wait_until_quiet()

    with scene.raw.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for n in range(10, 20):
            pipe.xadd(STREAM, {"data": f'{{"n":{n},"pad":"","sum":"{_sum(n)}"}}'})
        after = [entry_id.decode() for entry_id in pipe.execute()[1:]]
    worker.wait_for("done", count=20)
    scene.wait_until_quiet()

    scene.checker.check_conserved(after)


@pytest.mark.parametrize("how", ["XDEL", "XTRIM"])
def test_entries_that_vanish_while_pending_are_counted_and_leave_the_pending_list(
    how: str, half: str, scene: Scene
) -> None:
    ids = scene.publish(*(body(n, ["sleep", 3_600], runs=1) for n in range(6)))
    dead = scene.worker(half)
    dead.wait_for("began", count=6)
    dead.kill()
    gone = ids[:4]
    if how == "XDEL":
        scene.raw.xdel(STREAM, *gone)
    else:
        scene.raw.xtrim(STREAM, maxlen=2, approximate=False)

    heir = scene.worker(half)
    heir.wait_for("done", count=2)
    scene.wait_until_quiet()

    assert {entry_id for line in heir.said("event", name="missing") for entry_id in line["ids"]} == set(gone)
    found = scene.checker.places()
    assert found.dead == dict.fromkeys(gone, "missing")
    assert heir.stop() == 0
    assert heir.said("stopped")[0]["total_missing"] == 4
    scene.checker.check_quiet()


@pytest.mark.every_server
@pytest.mark.parametrize("has_heartbeats", [True, False], ids=["heartbeats", "no heartbeat"])
def test_an_entry_that_vanishes_under_its_handler_is_settled_by_the_end_of_the_handler(
    has_heartbeats: bool, half: str, scene: Scene
) -> None:
    gate = scene.gate()
    good, bad, again = scene.publish(
        body(0, ["until", gate]),
        body(1, ["until", gate], ["raise", "fatal"]),
        body(2, ["until", gate], ["raise", "error"]),
    )
    worker = scene.worker(half, config={"min_idle_claim_ms": 4_000 if has_heartbeats else 60_000})
    worker.wait_for("began", count=3)
    scene.raw.xdel(STREAM, good, bad, again)
    if has_heartbeats:
        for _ in range(2):  # the second one of another worker, whose heartbeats and recovery find nothing to do
            _wait_for_heartbeats(scene, good, bad, again)
            scene.worker(half, config={"min_idle_claim_ms": 4_000})
    scene.open(gate)
    worker.wait_for("event", name="dead_lettered", id=bad)
    scene.wait_until_quiet()

    eventually(lambda: not scene.raw.exists("{orders}:retries:billing"), "nobody waits any more")
    assert scene.checker.places().dead == {bad: "missing", again: "missing"}
    assert worker.said("event", name="lease_lost") == []
    assert [line["n"] for line in worker.said("done")] == [0]
    scene.checker.check_quiet()


def test_an_entry_that_vanished_under_a_handler_that_dies_is_counted(half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["sleep", 3_600]))
    worker = scene.worker(half)
    worker.wait_for("began")
    scene.raw.xdel(STREAM, entry_id)
    _wait_for_heartbeats(scene, entry_id)
    worker.kill()

    scene.worker(half).wait_for("event", name="missing", ids=[entry_id])
    scene.wait_until_quiet()
    assert scene.checker.places().dead == {entry_id: "missing"}
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_a_waiting_entry_that_vanishes_is_counted_when_its_time_comes(half: str, scene: Scene) -> None:
    (entry_id,) = scene.publish(body(0, ["raise", "error"]))
    worker = scene.worker(half, config={"retry_initial_delay_ms": 300})
    worker.wait_for("failed")
    eventually(lambda: scene.raw.zcard("{orders}:retries:billing"), "it waits")
    scene.raw.xdel(STREAM, entry_id)

    worker.wait_for("event", name="missing", ids=[entry_id])
    scene.wait_until_quiet()
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_trimming_by_a_worker_never_touches_what_another_group_needs(
    half: str, scene: Scene, measured: Callable[[str, object], None]
) -> None:
    ids = scene.publish(*(body(n) for n in range(100)))
    scene.raw.xgroup_create(STREAM, "slow", id="0")
    scene.raw.xreadgroup("slow", "someone", {STREAM: ">"}, count=10)
    scene.raw.xack(STREAM, "slow", *ids[:5])
    worker = scene.worker(half, config={"max_stream_size": 3, "retention_interval_ms": 50})
    trimmed = worker.wait_for("event", name="trimmed")
    scene.wait_until_quiet()

    measured("trimmed", trimmed["count"])
    left = [row[0].decode() for row in scene.raw.xrange(STREAM)]
    assert left[-95:] == ids[5:]


def _wait_for_heartbeats(scene: Scene, *entry_ids: str) -> None:
    def kept_until() -> list[float | None]:
        return [scene.raw.zscore("{orders}:retries:billing", entry_id) for entry_id in entry_ids]

    eventually(lambda: None not in kept_until(), "a heartbeat found them gone")
    before = kept_until()
    eventually(lambda: before[0] != kept_until()[0], "and another one")


def _wait_for_the_record(scene: Scene) -> None:
    def is_recorded() -> bool:
        last = scene.raw.xinfo_groups(STREAM)[0]["last-delivered-id"]
        exact = [last, *(row["message_id"] for row in scene.checker.pending())]
        return (scene.raw.get("{orders}:position:billing") or b"").split() == exact

    eventually(is_recorded, "the position is recorded")


def _sum(n: int) -> str:
    return str(body(n)["sum"])
