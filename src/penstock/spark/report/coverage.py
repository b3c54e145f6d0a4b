"""What an archive has of the subject, from its manifest alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from penstock import ids
from penstock.spark.archive.manifest import FileEntry, State
from penstock.spark.archive.status import load_state
from penstock.spark.reading.catalogue import StreamState
from penstock.spark.report.figures import Coverage, Day
from penstock.spark.report.subject import Subject

_MOST_DAYS = 120


def coverage_of(subject: Subject, states: Mapping[str, StreamState]) -> Coverage | None:
    """Return what is archived; None if no archive was named."""
    if subject.archive is None:
        return None
    archived = load_state(subject.archive)
    names = [name for name in subject.names() if name in archived.ranges]
    if not names:
        return Coverage(str(subject.archive), (), None, 0, None, is_known=False)
    losses = [each.lost for name in names for each in archived.ranges[name]]
    waiting = [_waiting(archived, name, states.get(name)) for name in names]
    upto = archived.ranges[names[0]][-1].upto if len(names) == 1 else None
    return Coverage(
        root=str(subject.archive),
        days=_days([entry for name in names for entry in archived.files_of(name)]),
        upto=upto,
        lost=None if None in losses else sum(lost or 0 for lost in losses),
        waiting=None if None in waiting else sum(count or 0 for count in waiting),
    )


def _days(files: list[FileEntry]) -> tuple[Day, ...]:
    by_date: dict[str, list[FileEntry]] = defaultdict(list)
    for entry in files:
        by_date[entry.date].append(entry)
    days = [
        Day(date, sum(e.rows for e in entries), len(entries), sum(e.bytes for e in entries))
        for date, entries in sorted(by_date.items())
    ]
    return tuple(days[-_MOST_DAYS:])


def _waiting(archived: State, name: str, state: StreamState | None) -> int | None:
    """Return how many entries lie behind the archived ones."""
    end = archived.end(name)
    if state is None or end is None:
        return 0
    if ids.parse(state.last_id) <= ids.parse(end.id):
        return 0
    if end.rank is None or state.added is None:
        return None
    return min(state.length, state.added - end.rank)
