"""What a message costs to drain while another consumer of the group holds few or many pending entries.

A worker that sweeps the whole pending list pays for entries that are none of its business.
"""

from __future__ import annotations

from bench.figures import Figures
from bench.measurements.drain import drain_filled
from bench.measurements.subject import Subject
from bench.peers.params import GROUP, STREAM
from bench.plan import Plan
from bench.server import Server

_LIMIT_S = 3.0
# The default is 5 s, longer than the window: like this, a window holds several passes of the recovery.
_RECOVERY_INTERVAL_MS = 200
_CHUNK = 5_000
_HOLDER = "holder"

# Both scripts run inside the server because 200,000 entries would take seconds over the network.
_ADD = "for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'data', '{}') end"
_READ = "redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')"


class HolderRobbed(RuntimeError):
    """The worker took entries of the other consumer, so the run measured a take-over and not a drain beside it."""


def pel(subject: Subject, server: Server, plan: Plan) -> Figures:
    """Measures a drain beside a small and beside a large pending list; `cost_ratio` is large over small."""
    count = int(subject.peer.pace.drain * plan.drain_s)
    runs = [_beside(subject, server, held, count) for held in plan.pending]
    small, large = (run["rate"] for run in runs)
    return {
        "rate_small": small,
        "rate_large": large,
        "cost_ratio": small / large,
        "messages": sum(run["messages"] for run in runs),
        "server_cpu_us_small": runs[0]["server_cpu_us"],
        "server_cpu_us_large": runs[1]["server_cpu_us"],
        "server_wait": max(run["server_wait"] for run in runs),
        "foreign_cores": max(run["foreign_cores"] for run in runs),
    }


def _beside(subject: Subject, server: Server, held: int, count: int) -> Figures:
    client = server.client
    client.flushall()
    client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    chunks = [min(_CHUNK, held - start) for start in range(0, held, _CHUNK)]
    for chunk in chunks:
        client.eval(_ADD, 1, STREAM, str(chunk))
    subject.fill(server, count)
    # Read last: nobody renews these leases, and a worker may rightly take over what was idle for longer than one.
    for chunk in chunks:
        client.eval(_READ, 1, STREAM, GROUP, _HOLDER, str(chunk))
    figures = drain_filled(
        subject, server, count, limit_s=_LIMIT_S, held=held, recovery_interval_ms=_RECOVERY_INTERVAL_MS
    )
    _check_holder(server, held)
    return figures


def _check_holder(server: Server, held: int) -> None:
    pending = {info["name"].decode(): info["pending"] for info in server.client.xinfo_consumers(STREAM, GROUP)}
    if pending.get(_HOLDER) != held:
        raise HolderRobbed(f"the other consumer holds {pending.get(_HOLDER)} of its {held} entries at the end")
