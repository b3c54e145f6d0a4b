"""How ranges of ids are shared out over partitions. Pure: what the streams hold is told by the caller.

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
from penstock.spark.reading.offsets import IdRange, between


@dataclass(frozen=True)
class Probe:
    """A sample of a stream: from this millisecond on, so many entries lay within so many milliseconds."""

    ms: int
    entries: int
    span_ms: int

    @property
    def density(self) -> float:
        """Entries a millisecond."""
        return self.entries / max(1, self.span_ms)


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
    """Return where to cut the range so that about the same number of entries lies in each piece.

    Between two samples the density of the first is assumed. A cut ends a millisecond: ids behind it begin the next one.
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
