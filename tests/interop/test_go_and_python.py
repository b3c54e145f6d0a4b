"""Python and Go peers serve one service together: each takes over from the other, and neither disturbs a live owner."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.sync import StreamBalancer, StreamClient
from tests.balancer.stage import LASTING
from tests.faults.balanced_service import outlive
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess
from tests.helpers.threads import throughout
from tests.interop.go_peer import GoPeer

LBS, GROUP, SEP = "svc-input", "svc-group", "<MUTEX_KEY_SEP>"
Go = Callable[..., GoPeer]
Python = Callable[..., WorkerProcess]


def add(raw: redis.Redis, name: str) -> str:
    entry_id: bytes = raw.xadd(LBS, {"lbs-input": json.dumps({"DataStreamName": name, "Info": {"user": 7}})})
    return entry_id.decode()


def holder(raw: redis.Redis, name: str, entry_id: str) -> str | None:
    value = raw.get(f"{name}{SEP}{entry_id}")
    return value.decode() if value else None


def pending(raw: redis.Redis, entry_id: str) -> tuple[str, int]:
    (row,) = raw.xpending_range(LBS, GROUP, entry_id, entry_id, 1)
    return row["consumer"].decode(), row["time_since_delivered"]


def flags(raw: redis.Redis) -> set[str]:
    return set(raw.config_get("notify-keyspace-events")["notify-keyspace-events"])


@contextmanager
def soon(seconds: float) -> Iterator[None]:
    """Fails when the block takes longer, where PENSTOCK_TIMED=1 says that the machine has nothing else to do."""
    began_s = time.monotonic()
    yield
    assert os.environ.get("PENSTOCK_TIMED") != "1" or time.monotonic() - began_s < seconds


# --- take-over in both directions -----------------------------------------------------------------


def test_go_takes_over_from_a_killed_python_owner(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    owner = python_peer("python", lease_ms=5_000)
    entry_id = add(raw, "session-1")
    owner.wait_for("StreamAdded", stream="session-1")
    go = go_peer("go", "-force")
    throughout(6.0, lambda: not go.said("StreamExpired"))  # longer than a lock: that nothing happens shows nowhere
    owner.kill()
    with soon(6.0):
        go.wait_for("claimed", stream="session-1")
    assert holder(raw, "session-1", entry_id) == "redis-consumer-go"
    assert pending(raw, entry_id)[0] == "redis-consumer-go"
    go.tell("done session-1")
    go.wait_for("done", is_success=True)
    assert raw.xlen(LBS) == 0


def test_python_takes_over_from_a_killed_go_owner(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    go = go_peer("go")
    entry_id = add(raw, "session-1")
    assert go.wait_for("StreamAdded", stream="session-1")["info"] == {"user": 7}
    python = python_peer("python", recovery_interval_ms=60_000)
    throughout(3.0, lambda: not python.said("StreamExpired"))  # longer than a lock, as above
    assert pending(raw, entry_id)[0] == "redis-consumer-go", "the sweep leaves a live Go owner alone"
    go.kill()
    with soon(3.0):
        python.wait_for("claimed", stream="session-1")
    assert holder(raw, "session-1", entry_id) == "redis-consumer-python"


def test_a_frozen_go_owner_is_disowned_when_it_comes_back(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    go = go_peer("go", "-claims=false")
    entry_id = add(raw, "session-1")
    go.wait_for("StreamAdded")
    python = python_peer("python", **LASTING)
    go.freeze()
    outlive(raw, "go")
    python.wait_for("claimed", stream="session-1")
    go.thaw()
    go.wait_for("StreamDisowned", stream="session-1")
    # It makes no further attempt to get it back, which nothing shows: longer than its locks live.
    throughout(2.5, lambda: holder(raw, "session-1", entry_id) == "redis-consumer-python")


def test_streams_go_to_both_sides(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    go = go_peer("go")
    python = python_peer("python")
    for number in range(20):
        add(raw, f"session-{number}")
        eventually(
            lambda number=number: len(go.said("StreamAdded")) + len(python.said("StreamAdded")) == number + 1,
            "it has an owner",
        )
    assert go.said("StreamAdded")
    assert python.said("StreamAdded")


# --- handing over ---------------------------------------------------------------------------------


def test_a_released_stream_is_with_a_go_peer_at_once(raw: redis.Redis, server: EmbeddedServer, go_peer: Go) -> None:
    with StreamClient.from_url(server.unix_url) as client:
        balancer = StreamBalancer(client, "svc", id="python")
        with balancer:
            entry_id = add(raw, "session-1")
            eventually(lambda: balancer.owned, "it is owned")
            go = go_peer("go", "-force")
            with soon(1.0):
                balancer.release("session-1")
                go.wait_for("claimed", stream="session-1")
            assert holder(raw, "session-1", entry_id) == "redis-consumer-go"


def test_what_is_left_at_the_end_is_with_a_go_peer_at_once(
    raw: redis.Redis, server: EmbeddedServer, go_peer: Go
) -> None:
    with StreamClient.from_url(server.unix_url) as client:
        with StreamBalancer(client, "svc", id="python") as notices:
            for number in range(10):
                add(raw, f"session-{number}")
            for _ in range(10):
                next(iter(notices))
            go = go_peer("go", "-force")
        go.wait_for("claimed", count=10)
    assert raw.xlen(LBS) == 10


# --- flags ----------------------------------------------------------------------------------------


def test_flags_that_a_go_peer_overwrites_are_merged_again(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    raw.config_set("notify-keyspace-events", "Kg")
    python_peer("python", recovery_interval_ms=500)
    assert flags(raw) >= set("KEgx")
    go_peer("old", "-force", "-events", "Ex")
    eventually(lambda: flags(raw) >= set("KEx"), "they are merged again")


def test_a_go_peer_of_either_version_is_heard(raw: redis.Redis, go_peer: Go, python_peer: Python) -> None:
    old = go_peer("old", "-events", "Ex", "-claims=false")
    add(raw, "session-1")
    old.wait_for("StreamAdded")
    python = python_peer("python", recovery_interval_ms=60_000)
    raw.config_set("notify-keyspace-events", "Ex")  # as the old peer's next start leaves it
    old.kill()
    python.wait_for("claimed", stream="session-1")


def test_a_go_peer_without_force_starts_first_and_python_joins(
    raw: redis.Redis, go_peer: Go, python_peer: Python
) -> None:
    go_peer("first")
    python_peer("python")
    second = go_peer("second", waits=False)
    assert "existing configuration" in second.wait_for("failed")["error"], "its own peers would fail it as well"


# --- newcomers and idle times ---------------------------------------------------------------------


def test_a_go_newcomer_takes_nothing_from_a_live_python_owner(
    raw: redis.Redis, go_peer: Go, python_peer: Python
) -> None:
    owner = python_peer("python", lease_ms=5_000)
    entry_id = add(raw, "session-1")
    owner.wait_for("StreamAdded")
    # Longer than the idle time of the newcomer, which is more than the owner's heartbeats let an entry have:
    throughout(12.0, lambda: pending(raw, entry_id)[1] < 12_000)
    newcomer = go_peer("newcomer", "-force", "-idle", "12s")
    throughout(2.0, lambda: pending(raw, entry_id)[0] == "redis-consumer-python")  # it takes over when it starts
    assert not newcomer.said("recovered")
    assert not owner.said("StreamDisowned")


def test_a_refreshed_entry_is_idle_enough_for_go_when_the_lock_expires(
    raw: redis.Redis, go_peer: Go, python_peer: Python
) -> None:
    for turn in range(3):  # killed at different moments between two heartbeats
        owner = python_peer(f"python-{turn}", recovery_interval_ms=60_000)
        entry_id = add(raw, f"session-{turn}")
        owner.wait_for("StreamAdded", stream=f"session-{turn}")
        go = go_peer(f"go-{turn}", "-force")
        eventually(
            lambda entry_id=entry_id, turn=turn: pending(raw, entry_id)[1] >= 3_000 + 300 * turn, "a heartbeat is past"
        )
        owner.kill()
        go.wait_for("claimed", stream=f"session-{turn}")
        assert not go.said("refused")
        go.kill()
        raw.flushall()
