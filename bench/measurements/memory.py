"""How much memory a message takes in the server while a consumer has it."""

from __future__ import annotations

import time

from bench.child import Worker
from bench.figures import Figures
from bench.measurements.subject import Subject
from bench.plan import Plan
from bench.probe import ProbeReader
from bench.server import Server

_PATIENCE_S = 15.0
_POLL_S = 0.01


def in_flight(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures all keys of the queue beside the size of the one message in it, which a consumer holds."""
    with subject.publisher(server, "one", note_bytes=plan.large) as publisher:
        publisher.publish(1)
    with ProbeReader() as probe, subject.worker(server, probe, holds=True) as worker:
        _wait_for_first(worker, probe)
        used = sum(server.client.memory_usage(key, samples=0) or 0 for key in server.client.scan_iter())
    return {"memory_ratio": used / plan.large, "messages": 1}


def _wait_for_first(worker: Worker, probe: ProbeReader) -> None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while probe.count() == 0:
        worker.check()
        if time.monotonic() > give_up_at:
            raise worker.failure(f"took no message in {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
