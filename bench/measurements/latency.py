"""How long a message takes from publish to handler at a modest, steady rate, and what that costs in commands."""

from __future__ import annotations

import time

from bench.child import Publisher
from bench.command_count import CommandCount
from bench.figures import Figures
from bench.measurements.subject import Subject
from bench.plan import Plan
from bench.probe import ProbeReader
from bench.server import Server
from bench.window import Window

_WARM_UP = 50
_START_PATIENCE_S = 20.0
_PASS_PATIENCE_S = 5.0
_POLL_S = 0.01


def latency(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures one producer and one worker in two windows: the first is timed, in the second commands are counted."""
    with (
        subject.publisher(server, "paced", plan.rate) as publisher,
        ProbeReader() as probe,
        subject.worker(server, probe, stamps=True) as worker,
    ):
        _publish_and_wait(publisher, probe, _WARM_UP, _START_PATIENCE_S)
        probe.forget_latencies()
        timed = int(plan.rate * plan.paced_s)
        window = Window(server.pid, worker.pid)
        late = _publish_and_wait(publisher, probe, timed, _PASS_PATIENCE_S)
        costs = window.close(timed)
        latencies = probe.latencies_s()
        if not latencies:
            raise worker.failure("handled no message of the timed window")
        counted = int(plan.rate * plan.counted_s)
        with CommandCount(server) as commands:
            _publish_and_wait(publisher, probe, counted, _PASS_PATIENCE_S)
            _wait_for_acks(subject, server)
            commands.stop()
        return {
            "p50_ms": _quantile(latencies, 0.5) * 1000,
            "p99_ms": _quantile(latencies, 0.99) * 1000,
            "sent": commands.sent / counted,
            "executed": commands.executed / counted,
            "messages": timed,
            "missing": timed - len(latencies),
            "late": late,
            **costs,
        }


def _publish_and_wait(publisher: Publisher, probe: ProbeReader, count: int, patience_s: float) -> int:
    goal = probe.count() + count
    late = publisher.publish(count)["late"]
    give_up_at = time.monotonic() + patience_s
    while probe.count() < goal and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    return late


def _wait_for_acks(subject: Subject, server: Server) -> None:
    give_up_at = time.monotonic() + _PASS_PATIENCE_S
    while subject.peer.unfinished(server.client) > 0 and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
