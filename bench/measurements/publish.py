"""How many messages a second one producer process publishes."""

from __future__ import annotations

from bench.figures import Figures
from bench.measurements.subject import Subject
from bench.peers.params import Mode
from bench.plan import Plan
from bench.server import Server
from bench.window import Window

_WARM_UP = 200


def one_by_one(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures one caller that waits for each message."""
    return _publish(subject, server, "one", int(subject.peer.pace.one * plan.publish_s))


def fifty_callers(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures 50 callers that share one producer."""
    return _publish(subject, server, "fifty", int(subject.peer.pace.fifty * plan.publish_s))


def bulk(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures one caller that publishes batches of 100."""
    return _publish(subject, server, "bulk", int(subject.peer.pace.bulk * plan.publish_s))


def _publish(subject: Subject, server: Server, mode: Mode, count: int) -> Figures:
    with subject.publisher(server, mode) as publisher:
        publisher.publish(_WARM_UP)
        window = Window(server.pid, publisher.pid)
        wall_s = publisher.publish(count)["wall_s"]
        return {"rate": count / wall_s, "messages": count, **window.close(count)}
