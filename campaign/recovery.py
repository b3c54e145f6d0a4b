"""How long each fault was felt, and whether that is within its bound.

kill, poison, freeze   from the fault until the last message that the worker had in hand was handled by another, or was
                       in the hands of another one that was hit; without those that kill workers
server_kill            from the moment when the server answers again until a message published since was handled
failover_*             the same from the moment when another master is in place and has a replica
others on everybody    from their begin until a message published since was handled

A fault that hits everybody while another one is felt may make that longer by its own time and OTHERS_S; so does the
time in which no worker ran that could take over. What is published behind a backlog waits for that, fault or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from campaign.journal import NO_FAULTS, InFlight, Run, Window

LOSSES = frozenset({"kill", "poison", "freeze"})
REACTION_S = 1.0
"""From the sweep that finds messages until their handlers have ended, on a machine with more processes than cores."""
OTHERS_S = 1.0
"""What a fault on everybody may cost beyond its own time: the time-out of a socket, or a new connection."""
_SERVER_S, _FAILOVER_S = 2.0, 3.0
_NOTICED_S = 0.5
_LATELY = 20
_BACKLOG_S = 0.5  # less is the way of a message through busy processes


@dataclass(frozen=True)
class Bounds:
    """What a scenario allows; a lease of 0 says that nobody looks what its workers have in hand."""

    lease_s: float = 0.0
    sweep_s: float = 0.0
    node_timeout_s: float = 2.0

    def of(self, kind: str) -> float | None:
        """Return how long a fault of this kind may be felt; None = nothing is promised."""
        if kind in LOSSES:
            return self.lease_s + self.sweep_s + REACTION_S if self.lease_s else None
        promised = {
            "server_kill": _SERVER_S, "failover_kill": _FAILOVER_S, "failover_freeze": _FAILOVER_S,
            "cluster_kill": self.node_timeout_s + _FAILOVER_S,
        }  # fmt: skip
        return promised.get(kind)


@dataclass(frozen=True)
class Felt:
    """One fault, from when to when it was felt, and by what that is known."""

    window: Window
    begin: float
    end: float
    message: str
    backlog_s: float = 0.0
    """How old the messages were that were being handled when it began: it may be felt for so much longer."""


@dataclass
class KindOfRecovery:
    """All faults of one kind."""

    faults: int = 0
    measured: int = 0
    bound_s: float | None = None
    alone_s: float = 0.0
    """The longest that was felt while nothing else was broken."""
    beside_s: float = 0.0
    """The longest of those during which something else hit everybody, or no worker ran."""
    broken: int = 0
    unjudged: list[str] = field(default_factory=list)
    """Longer than the bound while other programs had the machine: that proves nothing."""

    @property
    def worst_s(self) -> float:
        return max(self.alone_s, self.beside_s)

    @property
    def verdict(self) -> str:
        if self.broken:
            return f"BROKEN, {self.broken} times"
        if self.unjudged:
            return f"not judged, {len(self.unjudged)} times: others had the machine"
        return "-" if self.bound_s is None or not self.measured else "kept"


class Presence:
    """When a worker ran that could take over."""

    def __init__(self, started: dict[str, float], windows: Iterable[Window]) -> None:
        ends, frozen = dict[str, float](), defaultdict[str, list[Window]](list)
        for window in windows:
            if window.kind in {"kill", "poison", "term", "crash"}:
                ends[window.target] = min(window.begin, ends.get(window.target, float("inf")))
            elif window.kind in {"freeze", "nap"}:
                frozen[window.target].append(window)
        self._spans = sorted(
            span
            for process, at in started.items()
            for span in _without(at, ends.get(process, float("inf")), frozen[process])
        )

    def absent_s(self, begin: float, end: float) -> float:
        """Return for how long between two moments no worker ran."""
        total, until = 0.0, begin
        for first, last in self._spans:
            if first >= end:
                break
            total += max(0.0, min(first, end) - until)
            until = max(until, last)
        return total + max(0.0, end - until) if until < end else total


def _without(begin: float, end: float, gaps: list[Window]) -> Iterator[tuple[float, float]]:
    for gap in sorted(gaps, key=lambda window: window.begin):
        if begin < min(gap.begin, end):
            yield begin, min(gap.begin, end)
        begin = max(begin, gap.end)
    if begin < end:
        yield begin, end


def felt_by_all(
    confirmed: dict[str, float], ended: dict[str, float], runs: dict[str, list[Run]], windows: list[Window]
) -> Iterator[Felt]:
    """Yield what faults on everybody did to the messages that were published after them."""
    pairs = sorted((at, ended[n], n) for n, at in confirmed.items() if n in ended)
    published = [at for at, _, _ in pairs]
    first = list(accumulate(((end, n) for _, end, n in reversed(pairs)), min))[::-1]  # of these and all later ones
    firsts = ((min(run.begin for run in of), n) for n, of in runs.items() if n in confirmed)
    begun = sorted((begin, begin - confirmed[n]) for begin, n in firsts)
    for window in windows:
        if window.target != "*" or window.kind in NO_FAULTS:
            continue
        last = bisect_right(begun, (window.begin, float("inf")))
        ages = [age for _, age in begun[max(0, last - _LATELY) : last]]
        backlog_s = median(ages) if ages else 0.0
        since = window.restored or (window.end if window.kind == "server_kill" else window.begin)
        place = bisect_right(published, since)
        if place < len(pairs):
            end, message = first[place]
            begin = window.begin if window.kind == "cluster_kill" else since
            yield Felt(window, begin, end, message, backlog_s if backlog_s > _BACKLOG_S else 0.0)


def longest_wait_s(runs: dict[str, list[Run]], hits: dict[str, set[Window]]) -> float:
    """Return how long a message waited that lost its workers, from the first of these to the end of its last run."""
    waits = [0.0]
    for n, of in hits.items():
        ends = [run.end for run in runs.get(n, ()) if run.end is not None]
        if ends and of:
            waits.append(max(ends) - min(window.begin for window in of))
    return max(waits)


def felt_by_held(runs: dict[str, list[Run]], hits: dict[str, set[Window]]) -> Iterator[Felt]:
    """Yield for each worker that was hit when the last of what it had in hand had come to another."""
    last: dict[Window, tuple[float, str]] = {}
    for n, of in hits.items():
        for window in of:
            again = [hit.begin for hit in of if hit.target != window.target and hit.begin > window.begin]
            # Of a worker that was frozen also what it did itself when it was back.
            back = window.end if window.kind == "freeze" else float("inf")
            again += [
                run.end or run.begin
                for run in runs.get(n, ())
                if run.begin > (back if run.process == window.target else window.begin)
            ]
            if again:
                last[window] = max(last.get(window, (0.0, "")), (min(again), n))
    for window, (end, message) in last.items():
        yield Felt(window, window.begin, end, message)


def losses(runs: dict[str, list[Run]], windows: list[Window], held: list[InFlight]) -> dict[str, set[Window]]:
    """Return the faults by which each message lost its worker."""
    by_process = defaultdict[str, list[Window]](list)
    for window in sorted(windows, key=lambda window: window.begin):
        if window.kind in LOSSES:
            by_process[window.target].append(window)
    found = defaultdict[str, set[Window]](set)
    for record in held:
        known = [window for window in by_process[record.process] if window.begin <= record.at + _NOTICED_S]
        for n in record.messages if known else ():
            found[n].add(known[-1])
    for n, of in runs.items():
        for run in of:
            if run.end is None and not run.has_failed:
                found[n].update(window for window in by_process[run.process] if window.begin >= run.begin)
    return found


def against_bounds(
    felt: list[Felt], windows: list[Window], presence: Presence, bounds: Bounds
) -> tuple[dict[str, KindOfRecovery], list[str]]:
    """Return the recoveries by kind of fault, and those that took too long while the machine was ours."""
    counts = Counter(window.kind for window in windows if window.kind not in NO_FAULTS)
    kinds = {kind: KindOfRecovery(count, bound_s=bounds.of(kind)) for kind, count in sorted(counts.items())}
    on_all = [window for window in windows if window.target == "*"]
    late: list[str] = []
    for one in felt:
        kind, took_s = kinds[one.window.kind], one.end - one.begin
        extra_s = sum(
            min(other.end, one.end) - max(other.begin, one.begin) + OTHERS_S
            for other in on_all
            if other is not one.window and other.kind not in NO_FAULTS and _meet(other, one)
        )
        extra_s += one.backlog_s
        if one.window.kind in LOSSES:
            extra_s += presence.absent_s(min(one.begin + bounds.lease_s, one.end), one.end)
        kind.measured += 1
        if extra_s:
            kind.beside_s = max(kind.beside_s, took_s)
        else:
            kind.alone_s = max(kind.alone_s, took_s)
        if kind.bound_s is None or took_s <= kind.bound_s + extra_s:
            continue
        described = (
            f"{one.window.kind} of {one.window.target} at {one.window.begin:.3f}: {took_s:.1f} s until message "
            f"{one.message} was handled, {kind.bound_s + extra_s:.1f} s are allowed"
        )
        if any(other.kind in NO_FAULTS and _meet(other, one) for other in on_all):
            kind.unjudged.append(described)
        else:
            kind.broken += 1
            late.append(described)
    return kinds, late


def _meet(window: Window, felt: Felt) -> bool:
    return window.begin < felt.end and window.end > felt.begin
