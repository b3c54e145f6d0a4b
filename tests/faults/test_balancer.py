"""Owners of streams that are killed and frozen: each stream has another owner soon, and never two that count."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess

LBS, GROUP, SEP = "svc-input", "svc-group", "<MUTEX_KEY_SEP>"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def peer(server: EmbeddedServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a consumer process of the service."""
    started: list[WorkerProcess] = []

    def start(name: str, **job: Any) -> WorkerProcess:
        process = WorkerProcess(
            {"url": server.unix_url, "name": name, **job}, tmp_path / f"{name}.log", "tests.faults.balancer_peer"
        )
        started.append(process)
        if job.get("mode") != "run":
            process.wait_for("ready")
        return process

    yield start
    for process in started:
        process.close()


def add(raw: redis.Redis, count: int, prefix: str = "session") -> None:
    with raw.pipeline(transaction=False) as burst:
        for number in range(count):
            burst.xadd(LBS, {"lbs-input": json.dumps({"DataStreamName": f"{prefix}-{number}", "Info": None})})
        burst.execute()


def owners(raw: redis.Redis) -> dict[str, str]:
    """Returns the holder of each lock, by the data stream."""
    keys = list(raw.scan_iter(match=f"*{SEP}*", count=5_000))
    values = raw.mget(keys) if keys else []
    return {
        key.decode().split(SEP)[0]: value.decode() for key, value in zip(keys, values, strict=True) if value is not None
    }


def counts(raw: redis.Redis, names: list[str]) -> list[int]:
    held = list(owners(raw).values())
    return [held.count(f"redis-consumer-{name}") for name in names]


def gained(process: WorkerProcess) -> list[str]:
    """Returns the streams that a process was given or claimed, once for each time."""
    return [line["stream"] for kind in ("StreamAdded", "claimed") for line in process.said(kind)]


def lost(process: WorkerProcess) -> list[str]:
    return [line["stream"] for line in process.said("StreamDisowned")]


def owned_now(process: WorkerProcess) -> list[str]:
    """Returns what a living process believes to own, in order; a stream that it was given twice comes twice."""
    return sorted((Counter(gained(process)) - Counter(lost(process))).elements())


def tokens(process: WorkerProcess) -> dict[str, int]:
    """Returns the newest token that a process was given for each stream."""
    found: dict[str, int] = {}
    for line in [*process.said("StreamAdded"), *process.said("claimed")]:
        found[line["stream"]] = max(line["token"], found.get(line["stream"], 0))
    return found


def agree(raw: redis.Redis, processes: dict[str, WorkerProcess], streams: int) -> bool:
    """Tells whether each stream has one owner, which knows it, as the locks have it and as the tokens do."""
    owned = [(stream, name) for name, process in processes.items() for stream in owned_now(process)]
    if len(owned) != streams:
        return False
    given = {name: tokens(process) for name, process in processes.items()}
    newest = {stream: max(given, key=lambda name: given[name].get(stream, 0)) for stream, _ in owned}
    locks = {stream: holder.removeprefix("redis-consumer-") for stream, holder in owners(raw).items()}
    return len(newest) == streams and dict(owned) == newest == locks


# Times mean something only with the machine to itself: `make test-failover` sets this, and does all the rounds.
IS_TIMED = os.environ.get("PENSTOCK_TIMED") == "1"


def take_over(
    raw: redis.Redis, peer: Start, rounds: int, streams: int, half: str, measured: Callable[[str, object], None],
    settings: dict[str, Any] | None = None, is_deaf: bool = False,
) -> list[float]:  # fmt: skip
    """Kills owners of all streams, one after the other, and returns how long each take-over took."""
    took: list[float] = []
    losses: list[str] = []
    add(raw, streams)
    job: dict[str, Any] = {"half": half, "settings": settings or {}, "deaf": is_deaf}
    victim = peer("victim-0", **job)
    eventually(lambda: len(owners(raw)) == streams, "the first owner has all streams", 60, victim.story)
    for number in range(rounds):
        # The peers join when all is owned: they own nothing, and the next victim is the one that takes over all.
        others = [peer(f"{number}-{letter}", **job) for letter in "ab"]
        killed_s = time.monotonic()
        victim.kill()
        eventually(
            lambda others=others: sum(len(gained(other)) for other in others) >= streams,
            "all streams have an owner again", 60, others[0].story,
        )  # fmt: skip
        at_s = max(line["at"] for other in others for line in [*other.said("claimed"), *other.said("StreamAdded")])
        took.append(at_s - killed_s)
        named = {f"{number}-{letter}": other for letter, other in zip("ab", others, strict=True)}
        # A process that the machine starves for longer than a lock lives may lose streams, and is told a moment later.
        eventually(lambda named=named: agree(raw, named, streams), "all agree on the owners", 60, others[0].story)
        losses += [*lost(others[0]), *lost(others[1])]
        # One of them dies, and the other one is the next victim, with all streams.
        victim, leaver = others[0], others[1]
        leaver.close()
        eventually(lambda victim=victim: len(owned_now(victim)) == streams, "one has all", 60, victim.story)
    measured("worst take-over in s", round(max(took), 2))
    measured("streams that live owners lost", len(losses))
    assert not losses or not IS_TIMED, losses
    return took


@pytest.mark.slow
@pytest.mark.usefixtures("default_server")
@pytest.mark.timeout(600)
def test_1500_streams_of_a_killed_owner_have_new_ones_within_3_seconds_20_times_in_a_row(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    took = take_over(raw, peer, rounds=20 if IS_TIMED else 2, streams=1_500, half="async", measured=measured)
    assert max(took) < 3.0 or not IS_TIMED, took


@pytest.mark.slow
@pytest.mark.usefixtures("default_server")
def test_streams_of_a_killed_owner_have_new_ones_without_any_event_within_one_sweep(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    # The lock runs out after two seconds, then comes the next sweep; the rest is for the claims themselves.
    settings = {"recovery_interval_ms": 1_500}
    took = take_over(
        raw, peer, rounds=2, streams=1_500, half="async", measured=measured, settings=settings, is_deaf=True
    )
    assert max(took) < 2.0 + 1.5 + 1.5 or not IS_TIMED, took


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
        peer(name, half=half)
    eventually(lambda: raw.hlen("{svc-input}:peers") == 4, "all have registered")
    add(raw, 200)
    eventually(lambda: sum(counts(raw, names)) == 200, "all streams have an owner")
    measured("streams of each", counts(raw, names))
    assert all(45 <= count <= 55 for count in counts(raw, names)), counts(raw, names)


def test_a_frozen_owner_is_disowned_when_it_comes_back_and_its_streams_stay_where_they_are(
    raw: redis.Redis, peer: Start, half: str
) -> None:
    frozen = peer("frozen", half=half)
    add(raw, 5)
    eventually(lambda: len(owned_now(frozen)) == 5, "it owns all", story=frozen.story)
    other = peer("other", half=half)
    frozen.freeze()
    eventually(lambda: len(owned_now(other)) == 5, "the other has taken over", story=other.story)
    frozen.thaw()
    frozen.wait_for("StreamDisowned", count=5)
    assert owned_now(frozen) == []
    assert counts(raw, ["frozen", "other"]) == [0, 5]
    assert lost(other) == []


def test_the_commit_of_an_owner_that_was_frozen_is_refused(raw: redis.Redis, peer: Start) -> None:
    frozen = peer("frozen", mode="run")
    add(raw, 1)
    frozen.wait_for("begin")
    raw.xadd("session-0", {"n": "1"})
    frozen.wait_for("committed")
    frozen.freeze()
    raw.xadd("session-0", {"n": "2"})
    other = peer("other", mode="run")
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
    first = peer("first", mode="run")
    add(raw, 20)
    eventually(lambda: len(running(first)) == 20, "all are begun", story=first.story)
    second = peer("second", mode="run", settings={"capacity": 20, "recovery_interval_ms": 60_000})
    assert first.stop() == 0
    assert not counts(raw, ["first"])[0]
    eventually(lambda: counts(raw, ["second"]) == [20], "the other one has them", story=second.story)
    assert all(line["is_lost"] is False for line in first.said("end")), "its handlers ended by themselves"
    assert raw.xlen(LBS) == 20


@pytest.mark.slow
@pytest.mark.usefixtures("default_server")
@pytest.mark.timeout(300)
def test_ten_thousand_owned_streams_cost_little(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    owner = peer("owner", cpu=True)
    add(raw, 10_000)
    cost = owner.wait_for("cost", timeout_s=240)
    measured("share of a core for 10,000 streams", round(cost["core"], 3))
    measured("peak memory in MB", round(cost["peak_mb"], 1))
    assert cost["core"] < 0.10 or not IS_TIMED, cost
    assert cost["peak_mb"] < 60, cost
    before = traffic(raw)
    eventually(lambda: traffic(raw)["pexpire"] >= before["pexpire"] + 50_000, "all locks were extended five times", 60)
    spent = traffic(raw) - before
    measured("bytes for each stream and heartbeat", round(spent["bytes"] / spent["pexpire"], 1))
    # A heartbeat refreshes the entries of 500 streams by one XCLAIM; one that has not ended yet is not whole.
    assert spent["xclaim"] <= spent["pexpire"] / 500 + 20, spent
    assert spent["bytes"] / spent["pexpire"] < 100, spent
    eventually(lambda: len(owners(raw)) == 10_000, "all have an owner")


def traffic(raw: redis.Redis) -> Counter[str]:
    """Returns how often the server has executed the commands of a heartbeat, and the bytes that it has received."""
    calls = raw.info("commandstats")
    commands = {name: int(calls[f"cmdstat_{name}"]["calls"]) for name in ("pexpire", "xclaim")}
    return Counter(commands, bytes=int(raw.info("stats")["total_net_input_bytes"]))
