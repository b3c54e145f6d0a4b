"""How soon the streams of a killed owner have new ones, and what it costs to own many: `make test-failover` measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import redis

from tests.faults.balanced_service import Start, add, owners, take_over
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.mark.timeout(600)
def test_1500_streams_of_a_killed_owner_have_new_ones_within_3_seconds_20_times_in_a_row(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    took, losses = take_over(raw, peer, rounds=20, streams=1_500, half="async", measured=measured)
    assert max(took) < 3.0, took
    assert losses == []


def test_streams_of_a_killed_owner_have_new_ones_without_any_event_within_one_sweep(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    # The lock runs out after two seconds, then comes the next sweep; the rest is for the claims themselves.
    settings = {"recovery_interval_ms": 1_500}
    took, losses = take_over(
        raw, peer, rounds=2, streams=1_500, half="async", measured=measured, settings=settings, is_deaf=True
    )
    assert max(took) < 2.0 + 1.5 + 1.5, took
    assert losses == []


@pytest.mark.timeout(300)
def test_ten_thousand_owned_streams_cost_little(
    raw: redis.Redis, peer: Start, measured: Callable[[str, object], None]
) -> None:
    owner = peer("owner", cpu=True)
    add(raw, 10_000)
    cost = owner.wait_for("cost", timeout_s=240)
    measured("share of a core for 10,000 streams", round(cost["core"], 3))
    measured("peak memory in MB", round(cost["peak_mb"], 1))
    assert cost["core"] < 0.10, cost
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
