"""The checker: set arithmetic over journals and what Redis holds. It imports nothing of Penstock.

lost          confirmed, and neither handled nor dead nor queued; what a FLUSHALL took is `flushed` instead
stranded      pending or unread after the drain, with live workers
innocent      dead, though no handler of it killed its process; reported with what ended each of its runs
unexplained   a handler began again and nothing explains it

A run is *explained* if its own process had been cut off and began it within SETTLING_S after that, before it could find
out that others had its messages; else by what happened to the run before it:

* it failed, because its message ordered that;
* its process was killed, or cut off for longer than 0.7 leases (frozen, mute, the server away), while it ran, or within
  SETTLING_S before it began, so that it had lost the message and not found out, or within SETTLING_S after it ended,
  before its acknowledgement may have been made (time in which the process was frozen does not count);
* its process was asked to stop, or crashed, and it had not ended;
* it ran while a failover or a jump of the server's clock may have undone its acknowledgement.

Lost replies, resets, half replies, short pauses, restarts and busy processors explain nothing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from campaign.journal import FAULTS_FILE, HELD_FILE, NO_FAULTS, InFlight, Run, Window, lines
from campaign.recovery import (
    Bounds,
    KindOfRecovery,
    Presence,
    against_bounds,
    felt_by_all,
    felt_by_held,
    longest_wait_s,
    losses,
)

SETTLING_S = 2.0
_FLUSH_SLACK_S = 0.5  # a push that the server executed before the FLUSHALL may be journalled after it
_DYING_S = 1.0


@dataclass
class State:
    """What Redis holds at the end, by the numbers of messages."""

    queued: set[str] = field(default_factory=set)
    dead: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    is_result_due: bool = False
    saved: Counter[str] | None = None
    """Results in the back-end, where there is one."""
    is_steady: bool = True
    """Whether messages come all the time, so that the next one shows how long a fault lasted."""


@dataclass
class Verdict:
    """What became of the messages of one scenario."""

    messages: int = 0
    handled: int = 0
    dead: int = 0
    unknown: int = 0
    hostile: int = 0
    flushed: int = 0
    explained: int = 0
    lost: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    results_twice: list[str] = field(default_factory=list)
    results_missing: list[str] = field(default_factory=list)
    innocent: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: dict[str, KindOfRecovery] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    """How long a message waited that lost one worker after the other."""

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        broken = (self.lost, self.unexplained, self.stranded, self.innocent, self.results_twice, self.results_missing)
        return not any((*broken, self.crashes, self.complaints, self.late))

    @property
    def recovery_s(self) -> float:
        """The longest of all."""
        return max((kind.worst_s for kind in self.recoveries.values()), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(folder: Path, state: State, crashes: list[str], bounds: Bounds | None = None) -> Verdict:
    """Return what the journals of a folder and the state say."""
    confirmed, unknown = _published(folder)
    runs, windows = _runs(folder)
    windows += [Window(**json.loads(line)) for line in _fault_lines(folder)]
    ended = {n: min(run.end for run in of if run.end is not None) for n, of in runs.items() if _is_ended(of)}
    verdict = Verdict(
        messages=len(confirmed), handled=len(ended), dead=len(state.dead), crashes=crashes,
        unknown=len(unknown - set(confirmed)), stranded=sorted(state.queued),
        faults=dict(Counter(window.kind for window in windows if window.kind not in NO_FAULTS)),
    )  # fmt: skip
    missing = set(confirmed) - set(ended) - set(state.dead) - state.queued
    flushes = [window.end + _FLUSH_SLACK_S for window in windows if window.kind == "flushall"]
    flushed = {n for n in missing if flushes and confirmed[n] <= max(flushes)}
    verdict.flushed, verdict.lost = len(flushed), sorted(missing - flushed)
    for n, of in runs.items():
        _judge_runs(n, sorted(of, key=lambda run: run.begin), windows, verdict)
    hits = losses(runs, windows, _held(folder))
    poisonous = {line.message for line in lines(folder, "worker") if line.what == "dying"}
    if state.is_steady:
        verdict.slowest_s = longest_wait_s(runs, hits)
        # What may have killed its workers waits for its last run until it is alone: its neighbours count.
        innocent = {n: of for n, of in hits.items() if n not in poisonous}
        felt = [*felt_by_all(confirmed, ended, runs, windows), *felt_by_held(runs, innocent)]
        started = {line.process: line.at for line in lines(folder, "worker") if line.what == "started"}
        verdict.recoveries, verdict.late = against_bounds(felt, windows, Presence(started, windows), bounds or Bounds())
    verdict.innocent = sorted(
        f"{n}, after {len(runs[n])} runs{_history(runs[n], hits.get(n, set()), windows)}"
        for n in state.dead
        if n not in poisonous
    )
    stores = [state.results] if state.saved is None else [state.results, state.saved]
    verdict.results_twice = sorted({n for store in stores for n, count in store.items() if count > 1})
    if state.is_result_due:
        due = set(ended) & set(confirmed) - set(state.dead)
        verdict.results_missing = sorted({n for store in stores for n in due if n not in store})
    return verdict


def _is_ended(runs: list[Run]) -> bool:
    return any(run.end is not None for run in runs)


def _published(folder: Path) -> tuple[dict[str, float], set[str]]:
    confirmed: dict[str, float] = {}
    unknown = set()
    for line in lines(folder, "producer"):
        if line.what == "confirmed":
            confirmed.setdefault(line.message, line.at)
        else:
            unknown.add(line.message)
    return confirmed, unknown


def _runs(folder: Path) -> tuple[dict[str, list[Run]], list[Window]]:
    found: dict[str, list[Run]] = defaultdict(list)
    deaths = []
    for line in lines(folder, "worker"):
        if line.what == "begin":
            found[line.message].append(Run(line.process, line.at))
        elif line.what == "dying":
            # Its other threads may begin something before the signal has ended them.
            deaths.append(Window("poison", line.process, line.at, line.at + _DYING_S, "all"))
        elif line.what in {"end", "fail"}:
            run = next(run for run in reversed(found[line.message]) if run.process == line.process)
            run.end = line.at if line.what == "end" else None
            run.has_failed = line.what == "fail"
    return found, deaths


def _fault_lines(folder: Path, name: str = FAULTS_FILE) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def _held(folder: Path) -> list[InFlight]:
    return [InFlight(**json.loads(line)) for line in _fault_lines(folder, HELD_FILE)]


def _judge_runs(n: str, runs: list[Run], windows: list[Window], verdict: Verdict) -> None:
    for before, after in pairwise(runs):
        if before.has_failed:
            continue
        cause = next((w for w in windows if _explains(w, before, windows) or _has_just_ended(w, after)), None)
        if cause is None:
            verdict.unexplained.append(
                f"{n}: {before.process} from {before.begin:.3f} to {before.end or 0:.3f}, "
                f"then {after.process} from {after.begin:.3f}"
            )
            continue
        verdict.explained += 1


def _history(runs: list[Run], hits: set[Window], windows: list[Window]) -> str:
    """Return what ended each run of a message, and the faults that hit a worker which had it and had not begun it."""
    events, unbegun = list[tuple[float, str]](), set(hits)
    for run in runs:
        end = "failed" if run.has_failed else f"ended at {run.end:.3f}" if run.end is not None else "never ended"
        if run.end is None and not run.has_failed:
            after = [w for w in windows if w.target == run.process and w.explains != "none" and w.end >= run.begin]
            cause = min(after, key=lambda window: window.begin, default=None)
            if cause is not None:
                end = f"{cause.kind} at {cause.begin:.3f}"
            unbegun = {window for window in unbegun if window.target != run.process or window.begin < run.begin}
        events.append((run.begin, f"{run.process} from {run.begin:.3f}: {end}"))
    events += [(w.begin, f"{w.target}, not begun: {w.kind} at {w.begin:.3f}") for w in unbegun]
    return "".join(f"; {text}" for _, text in sorted(events))


def _explains(window: Window, run: Run, windows: list[Window]) -> bool:
    if window.explains == "none" or window.target not in {"*", run.process}:
        return False
    if window.explains == "unended":
        return run.end is None
    if window.end + SETTLING_S < run.begin:
        return False
    return (
        run.end is None or window.begin - _asleep_s(run.process, run.end, window.begin, windows) <= run.end + SETTLING_S
    )


def _asleep_s(process: str, begin: float, end: float, windows: list[Window]) -> float:
    """Return for how long a process was frozen between two moments: it could acknowledge nothing."""
    asleep = [window for window in windows if window.target == process and window.kind in {"nap", "freeze"}]
    return sum(max(0.0, min(window.end, end) - max(window.begin, begin)) for window in asleep)


def _has_just_ended(window: Window, run: Run) -> bool:
    if window.explains != "all" or window.target not in {"*", run.process}:
        return False
    return window.begin <= run.begin <= window.end + SETTLING_S
