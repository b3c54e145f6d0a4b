"""What there is of a stream, and what is gone: days in an archive, and entries that were trimmed from Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock import ids
from penstock.spark.archive.state import FileEntry, State
from penstock.spark.archive.table import load_state
from penstock.spark.report.figures import ArchiveCoverage, Day
from penstock.spark.report.window import Window
from penstock.spark.source.catalogue import StreamState
from penstock.units import moment

_MOST_DAYS = 120


def archived_streams(root: str | Path) -> set[str]:
    """Return the streams of an archive; raise ConfigurationError if there is none."""
    return set(load_state(root).ranges)


def archive_coverage(root: str | Path, streams: Sequence[str], states: Mapping[str, StreamState]) -> ArchiveCoverage:
    """Return what an archive has of streams, from its table alone."""
    archived = load_state(root)
    names = [name for name in streams if name in archived.ranges]
    if not names:
        return ArchiveCoverage(str(root), (), None, 0, None, is_known=False)
    losses = [each.lost for name in names for each in archived.ranges[name]]
    waiting = [_waiting(archived, name, states.get(name)) for name in names]
    upto = archived.ranges[names[0]][-1].upto if len(names) == 1 else None
    return ArchiveCoverage(
        root=str(root),
        days=_days([entry for name in names for entry in archived.files_of(name)]),
        upto=upto,
        lost=None if None in losses else sum(lost or 0 for lost in losses),
        waiting=None if None in waiting else sum(count or 0 for count in waiting),
    )


def _days(files: list[FileEntry]) -> tuple[Day, ...]:
    by_date: dict[str, list[FileEntry]] = defaultdict(list)
    for entry in files:
        by_date[entry.day].append(entry)
    days = [
        Day(date, sum(e.rows for e in entries), len(entries), sum(e.bytes for e in entries))
        for date, entries in sorted(by_date.items())
    ]
    return tuple(days[-_MOST_DAYS:])


def _waiting(archived: State, name: str, state: StreamState | None) -> int | None:
    """Return how many entries come after the archived ones."""
    end = archived.end(name)
    if state is None or end is None:
        return 0
    if ids.parse(state.last_id) <= ids.parse(end.id):
        return 0
    if end.rank is None or state.added is None:
        return None
    return min(state.length, state.added - end.rank)


def trimmed(streams: Sequence[str], states: Mapping[str, StreamState], window: Window) -> tuple[str, ...]:
    """Return a sentence for each stream of which a part of the window is gone from Redis."""
    return tuple(_sentence(name, state) for name, state in states.items() if name in streams and _is_cut(state, window))


def _sentence(name: str, state: StreamState) -> str:
    gone = f"{state.removed:,} entries were trimmed or deleted"
    if state.first_id is None:
        return f"Stream {name} is empty now: {gone}, and this report cannot count them."
    return (
        f"Stream {name} begins at {moment(ids.parse(state.first_id)[0])} now: {gone} before that, and this report "
        "cannot count those of its time. An archive would have them."
    )


def _is_cut(state: StreamState, window: Window) -> bool:
    if not state.removed:
        return False
    return state.first_id is None or ids.parse(state.first_id)[0] > window.low
