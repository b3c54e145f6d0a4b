"""Owners of streams that are killed and frozen: each stream has another owner soon, and never two that count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from tests.balancer.stage import LASTING
from tests.faults.balanced_service import LBS, Start, add, counts, lost, outlive, owned_now, take_over
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess


def test_the_streams_of_a_killed_owner_have_new_ones_in_both_halves(
    raw: redis.Redis, peer: Start, half: str, measured: Callable[[str, object], None]
) -> None:
    take_over(raw, peer, rounds=2, streams=200, half=half, measured=measured)


@pytest.mark.usefixtures("default_server")
def test_a_burst_of_200_over_4_idle_processes_is_shared_out_evenly(
    raw: redis.Redis, peer: Start, half: str, measured: Callable[[str, object], None]
) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        peer(name, half=half, mode="run")
    eventually(lambda: raw.hlen("{svc-input}:peers") == 4, "all have registered")
    add(raw, 200)
    eventually(lambda: sum(counts(raw, names)) == 200, "all streams have an owner")
    measured("streams of each", counts(raw, names))
    # run() moves streams to a process that was too slow to take its share of the burst.
    is_even = lambda: all(45 <= count <= 55 for count in counts(raw, names))  # noqa: E731
    eventually(is_even, "each has its share", story=lambda: str(counts(raw, names)))


def test_a_frozen_owner_is_disowned_when_it_comes_back_and_its_streams_stay_where_they_are(
    raw: redis.Redis, peer: Start, half: str
) -> None:
    frozen = peer("frozen", half=half, settings=LASTING)
    add(raw, 5)
    eventually(lambda: len(owned_now(frozen)) == 5, "it owns all", story=frozen.story)
    other = peer("other", half=half, settings=LASTING)
    frozen.freeze()
    outlive(raw, "frozen")
    eventually(lambda: len(owned_now(other)) == 5, "the other has taken over", story=other.story)
    frozen.thaw()
    frozen.wait_for("StreamDisowned", count=5)
    assert owned_now(frozen) == []
    assert counts(raw, ["frozen", "other"]) == [0, 5]
    assert lost(other) == []


def test_the_commit_of_an_owner_that_was_frozen_is_refused(raw: redis.Redis, peer: Start) -> None:
    frozen = peer("frozen", mode="run", settings=LASTING)
    add(raw, 1)
    frozen.wait_for("begin")
    raw.xadd("session-0", {"n": "1"})
    frozen.wait_for("committed")
    frozen.freeze()
    outlive(raw, "frozen")
    raw.xadd("session-0", {"n": "2"})
    other = peer("other", mode="run", settings=LASTING)
    other.wait_for("committed")
    frozen.thaw()
    frozen.wait_for("end", is_lost=True)
    position = raw.hget("{session-0}:balancer:svc", "position").decode()
    assert position == other.said("committed")[-1]["id"]
    assert len(frozen.said("committed")) == 1, "whatever it read after its sleep was not taken from it"
    assert other.said("begin")[0]["token"] > frozen.said("begin")[0]["token"]
    assert other.said("begin")[0]["position"] == frozen.said("committed")[0]["id"]


def running(*processes: WorkerProcess) -> list[str]:
    """Returns the streams whose handlers have begun and not ended, once for each handler."""
    begun, ended = (
        Counter(line["stream"] for process in processes for line in process.said(did)) for did in ("begin", "end")
    )
    return list((begun - ended).elements())


@pytest.mark.usefixtures("default_server")
def test_handlers_of_a_killed_process_go_on_in_others_from_where_they_were(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    victim = peer("victim", mode="run")
    add(raw, 300)
    for number in range(300):
        raw.xadd(f"session-{number}", {"n": "1"})
    done: dict[str, str] = {}

    def is_read() -> bool:
        done.update((line["stream"], line["id"]) for line in victim.said("committed"))
        return len(done) == 300

    eventually(is_read, "all are read", 60, victim.story)
    # Two others that wait for it to die: while it lives, they would be given a part of its streams.
    victim.freeze()
    killed_s = time.monotonic()
    others = [peer(name, mode="run") for name in "ab"]
    victim.kill()
    eventually(lambda: sum(len(other.said("begin")) for other in others) >= 300, "all go on", 60, others[0].story)
    # A stream may move on to the other one meanwhile: its first handler ends a moment after the second has begun.
    eventually(lambda: sorted(running(*others)) == sorted(done), "each has one handler", 60, others[0].story)
    begun = [line for other in others for line in other.said("begin")]
    measured("handlers of a dead process went on after s", round(max(line["at"] for line in begun) - killed_s, 2))
    assert all(line["position"] == done[line["stream"]] for line in begun)


@pytest.mark.usefixtures("default_server")
def test_sigterm_hands_the_streams_of_a_process_over_before_their_locks_run_out(raw: redis.Redis, peer: Start) -> None:
    first = peer("first", mode="run", settings=LASTING)
    add(raw, 20)
    eventually(lambda: len(running(first)) == 20, "all are begun", story=first.story)
    second = peer("second", mode="run", settings={**LASTING, "capacity": 20, "recovery_interval_ms": 60_000})
    assert first.stop() == 0
    assert not counts(raw, ["first"])[0]
    eventually(lambda: counts(raw, ["second"]) == [20], "the other one has them", story=second.story)
    assert all(line["is_lost"] is False for line in first.said("end")), "its handlers ended by themselves"
    assert raw.xlen(LBS) == 20
