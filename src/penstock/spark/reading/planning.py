"""Plans what is read: asks Redis for counters and small samples, and lets the pure planner share it out."""

from __future__ import annotations

from dataclasses import replace

from penstock import ids
from penstock.errors import PenstockError
from penstock.spark.reading.catalogue import StreamState
from penstock.spark.reading.offsets import IdRange, Position
from penstock.spark.reading.planner import Probe, cut_points, probe_times
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import read_many

_PROBES = 32
_PROBE_ENTRIES = 32


def rows_between(start: Position, end: Position, state: StreamState) -> int:
    """Return how many entries lie between two positions: exact where both have a rank, else a share by time."""
    if start.rank is not None and end.rank is not None:
        return min(max(0, end.rank - start.rank), state.length)
    if state.first_id is None:
        return 0
    first, last = ids.parse(state.first_id)[0], ids.parse(state.last_id)[0]
    low, high = max(first, ids.parse(start.id)[0]), min(last, ids.parse(end.id)[0])
    if high < low:
        return 0
    return max(1, state.length * (high - low + 1) // (last - first + 1))


def cuts_by_density(client: StreamClient, whole: IdRange, pieces: int) -> tuple[str, ...]:
    """Return where to cut a range into pieces of about the same size, from a few small samples."""
    times = probe_times(whole.after, whole.upto, _PROBES) if pieces > 1 else []
    if not times:
        return ()
    key = client.keys(whole.stream).stream
    replies = read_many(
        client, [(key, ("XRANGE", key, f"{ms}-0", whole.upto, "COUNT", _PROBE_ENTRIES)) for ms in times]
    )
    last_ms = ids.parse(whole.upto)[0]
    probes = []
    for ms, reply in zip(times, replies, strict=True):
        if isinstance(reply, PenstockError):
            raise reply
        end_ms = ids.parse(reply[-1][0].decode())[0] if len(reply) == _PROBE_ENTRIES else last_ms
        probes.append(Probe(ms, len(reply), end_ms - ms + 1))
    return cut_points(whole.after, whole.upto, probes, pieces)


def range_between(stream: str, start: Position, end: Position, state: StreamState) -> IdRange:
    """Return the range between two positions, with what is known of its size."""
    return IdRange(stream, start.id, end.id, rows_between(start, end, state), start.rank)


def narrowed(whole: IdRange, after_ms: int | None, before_ms: int | None) -> IdRange:
    """Return the part of a range within a time: from a millisecond on, and before another one."""
    after, upto = whole.after, whole.upto
    if after_ms is not None and ids.parse(ids.before(f"{max(0, after_ms)}-0")) > ids.parse(after):
        after, whole = ids.before(f"{after_ms}-0"), replace(whole, rank=None)
    if before_ms is not None and ids.parse(f"{max(0, before_ms)}-0") <= ids.parse(upto):
        upto = ids.before(f"{max(0, before_ms)}-0")
    return replace(whole, after=after, upto=upto)
