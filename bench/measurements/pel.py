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
_RECOVERY_INTERVAL_MS = 500
_CHUNK = 5_000

# Adds entries and reads them as the other consumer, inside the server: 200,000 take less than a second, so they are
# still fresh, as those of a live consumer are, when the worker under test looks at them.
_HOLD = """
for i = 1, tonumber(ARGV[3]) do redis.call('XADD', KEYS[1], '*', 'data', '{}') end
redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
"""


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
    server.client.flushall()
    server.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    for start in range(0, held, _CHUNK):
        server.client.eval(_HOLD, 1, STREAM, GROUP, "holder", str(min(_CHUNK, held - start)))
    subject.fill(server, count)
    return drain_filled(subject, server, count, limit_s=_LIMIT_S, held=held, recovery_interval_ms=_RECOVERY_INTERVAL_MS)
