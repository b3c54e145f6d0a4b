"""How many messages a second one worker process handles and acknowledges."""

from __future__ import annotations

import time

from bench.child import Worker
from bench.figures import Figures
from bench.measurements.subject import Subject
from bench.plan import Plan
from bench.probe import ProbeReader
from bench.server import Server
from bench.window import Window

_FIRST_PATIENCE_S = 15.0
_DRAIN_LIMIT_S = 60.0
_POLL_S = 0.003


def drain(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures a worker on a queue that was filled before it started."""
    count = int(subject.peer.pace.drain * plan.drain_s)
    subject.fill(server, count)
    return drain_filled(subject, server, count, limit_s=_DRAIN_LIMIT_S)


def drain_filled(
    subject: Subject, server: Server, count: int, *, limit_s: float, held: int = 0, recovery_interval_ms: int = 0
) -> Figures:
    """Measures from the first handled message to the last acknowledgement, or to the end of the time limit.

    `held` entries belong to another consumer and stay unacknowledged.
    """
    with (
        ProbeReader() as probe,
        subject.worker(server, probe, recovery_interval_ms=recovery_interval_ms) as worker,
    ):
        _wait_for_first(worker, probe)
        window = Window(server.pid, worker.pid)
        started_at, handled_before = time.monotonic(), probe.count()
        stop_at = started_at + limit_s
        while probe.count() < count and time.monotonic() < stop_at:
            worker.check()
            time.sleep(_POLL_S)
        is_complete = probe.count() >= count
        while is_complete and subject.peer.unfinished(server.client) > held and time.monotonic() < stop_at:
            time.sleep(_POLL_S)
        wall_s = time.monotonic() - started_at
        handled = max(1, probe.count() - handled_before)
        return {"rate": handled / wall_s, "messages": handled, **window.close(handled)}


def _wait_for_first(worker: Worker, probe: ProbeReader) -> None:
    give_up_at = time.monotonic() + _FIRST_PATIENCE_S
    while probe.count() == 0:
        worker.check()
        if time.monotonic() > give_up_at:
            raise worker.failure(f"handled no message in {_FIRST_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
