"""How ranges of ids are shared out over partitions: pure functions, and those that ask Redis for a few samples.

More partitions than processors cost more than they bring, and one partition for each of a thousand small streams costs
thirty times the reading itself. So a range is cut only where it is long, and short ones are packed together.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock import ids
from penstock.errors import PenstockError
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.offsets import IdRange, Position, between
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import read_many

_PROBES = 32
_PROBE_ENTRIES = 32
_ROWS_OF_ONE_TASK = 50_000
_LEAST_ROWS = 10_000  # for which a task of its own pays


@dataclass(frozen=True)
class Probe:
    """A sample of a stream: how many entries there were in how many milliseconds from this one on."""

    ms: int
    entries: int
    span_ms: int

    @property
    def density(self) -> float:
        """Entries a millisecond."""
        return self.entries / max(1, self.span_ms)


def enough_partitions(rows: int, cores: int) -> int:
    """Return how many partitions a batch query is read in, unless the user says so: one task is enough for little."""
    return 1 if rows <= _ROWS_OF_ONE_TASK else max(1, min(cores, rows // _LEAST_ROWS))


def wanted_pieces(rows: int, total_rows: int, min_partitions: int, max_rows: int) -> int:
    """Return into how many pieces a range should be cut, as its share of all that is read."""
    share = math.ceil(min_partitions * rows / total_rows) if total_rows else 1
    return max(1, share, math.ceil(rows / max_rows))


def probe_times(after: str, upto: str, count: int) -> list[int]:
    """Return the milliseconds at which to take samples, evenly over the range."""
    first, last = ids.parse(after)[0], ids.parse(upto)[0]
    if last <= first or count < 1:
        return []
    return sorted({first + (last - first) * i // count for i in range(count)})


def cut_points(after: str, upto: str, probes: Sequence[Probe], pieces: int) -> tuple[str, ...]:
    """Return where to cut the range into pieces with about the same number of entries.

    Between two samples the density of the first is assumed. A cut ends a millisecond: ids after it begin the next one.
    """
    last_ms = ids.parse(upto)[0]
    if pieces < 2 or not probes:
        return ()
    edges = [*(probe.ms for probe in probes), last_ms + 1]
    weights = [probe.density * (b - a) for probe, a, b in zip(probes, edges, edges[1:], strict=False)]
    sums = list(itertools.accumulate(weights, initial=0.0))
    cuts = []
    for piece in range(1, pieces):
        goal = sums[-1] * piece / pieces
        index = min(max(0, bisect_left(sums, goal) - 1), len(weights) - 1)
        inside = (goal - sums[index]) / weights[index] if weights[index] else 0.0
        cut_ms = int(edges[index] + inside * (edges[index + 1] - edges[index]))
        cuts.append(ids.before(f"{cut_ms}-0"))
    return between(cuts, after, upto)


def cut(whole: IdRange, cuts: Sequence[str]) -> list[IdRange]:
    """Return the pieces of a range."""
    bounds = [whole.after, *between(cuts, whole.after, whole.upto), whole.upto]
    rows = whole.rows // (len(bounds) - 1)
    pieces = [replace(whole, after=a, upto=b, rows=rows, rank=None) for a, b in itertools.pairwise(bounds)]
    return [replace(pieces[0], rank=whole.rank), *pieces[1:]]


def pack(pieces: Sequence[IdRange], max_rows: int, min_partitions: int) -> list[tuple[IdRange, ...]]:
    """Share the pieces out over as few partitions as hold them, evenly; the same pieces give the same partitions."""
    pieces = [piece for piece in pieces if not piece.is_empty]
    if not pieces:
        return []
    weights = [piece.rows + 1 for piece in pieces]  # an empty stream costs a question as well
    wanted = max(min_partitions, math.ceil(sum(weights) / (max_rows * 1.25)))
    heaps = [(0, index) for index in range(min(wanted, len(pieces)))]
    bins: list[list[int]] = [[] for _ in heaps]
    for index in sorted(range(len(pieces)), key=lambda i: (-weights[i], i)):
        load, lightest = heapq.heappop(heaps)
        bins[lightest].append(index)
        heapq.heappush(heaps, (load + weights[index], lightest))
    return [tuple(pieces[i] for i in sorted(chosen)) for chosen in bins if chosen]


def rows_between(start: Position, end: Position, state: StreamState) -> int:
    """Return how many entries there are between two positions: exact if both have a rank, else estimated by time."""
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
    if pieces < 2:
        return ()
    key = client.keys(whole.stream).stream
    # A cut before the first entry would look like a loss: the range may begin long ago, and what was there is trimmed.
    [first] = read_many(client, [(key, ("XRANGE", key, f"({whole.after}", whole.upto, "COUNT", 1))])
    if isinstance(first, PenstockError):
        raise first
    begin = first[0][0].decode() if first else whole.upto
    times = probe_times(begin, whole.upto, _PROBES)
    if not times:
        return ()
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
    return cut_points(begin, whole.upto, probes, pieces)


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
