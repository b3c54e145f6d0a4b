"""Finds entries that were gone before they were read, from what the server counts; pure.

XTRIM leaves no trace but the counters: all that was ever added, less what is there, is what was removed. A position
that knows its rank can therefore tell exactly whether anything behind it is missing. Servers before 7.0 do not count;
there only an entry at or before the position proves that nothing behind it went.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock import ids
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.offsets import Position


@dataclass(frozen=True)
class Gap:
    """Entries of a stream that nobody can read any more."""

    stream: str
    after: str
    before: str  # '' = up to the end
    count: int | None  # None = unknown, possibly none
    is_exact: bool
    why: str
    resume: Position  # where reading can go on

    def __str__(self) -> str:
        """Tell what is lost."""
        number = "an unknown number of" if self.count is None else f"{'' if self.is_exact else 'up to '}{self.count:,}"
        upto = f"and before {self.before}" if self.before else "up to its end"
        return f"stream {self.stream!r}: {number} entries after {self.after} {upto} are lost: {self.why}"


def find_gap(stream: str, at: Position, state: StreamState | None) -> Gap | None:
    """Return what is missing behind a position, or None."""
    here = ids.parse(at.id)
    if state is None:
        if at.id == ids.ZERO:
            return None
        return Gap(stream, at.id, "", None, False, "the stream was deleted", Position(ids.ZERO, 0))
    if _is_another(at, state):
        why = "the stream was deleted and created anew, or the server lost its newest entries"
        return Gap(stream, at.id, state.first_id or "", None, False, why, beginning(state))
    if state.first_id is not None and ids.parse(state.first_id) <= here:
        return None
    if state.removed is not None and at.rank is not None:
        return _counted(stream, at, state, state.removed - at.rank)
    return _uncounted(stream, at, state)


def _is_another(at: Position, state: StreamState) -> bool:
    # A query may begin at a time that has not come: where the server counts, to be ahead of the stream says nothing.
    if at.rank is not None and state.added is not None:
        return state.added < at.rank or _has_too_many(at, at.rank, state)
    return ids.parse(state.last_id) < ids.parse(at.id)


def _has_too_many(at: Position, rank: int, state: StreamState) -> bool:
    # All entries are behind the position, and fewer are gone than lay before it: they are not those of that stream.
    if state.first_id is None or state.removed is None or ids.parse(state.first_id) <= ids.parse(at.id):
        return False
    return state.removed < rank


def _counted(stream: str, at: Position, state: StreamState, lost: int) -> Gap | None:
    if lost <= 0:
        return None
    deleted_since = state.last_deleted is not None and ids.parse(state.last_deleted) > ids.parse(at.id)
    why = "trimmed, or deleted one by one," if deleted_since else "trimmed"
    return Gap(
        stream, at.id, state.first_id or "", lost, not deleted_since, f"they were {why} before they were read",
        beginning(state),
    )  # fmt: skip


def _uncounted(stream: str, at: Position, state: StreamState) -> Gap | None:
    nothing_since = state.first_id is None and state.last_id == at.id
    is_next = state.first_id is not None and ids.parse(state.first_id) == ids.parse(ids.after(at.id))
    if at.id == ids.ZERO or nothing_since or is_next:
        return None
    why = (
        "the entry at the position was trimmed, and the server does not count what else was"
        if state.removed is None
        else "they were trimmed or deleted before they were read"
    )
    return Gap(stream, at.id, state.first_id or "", None, False, why, beginning(state))


def beginning(state: StreamState) -> Position:
    """Return the position before the first entry that is left."""
    if state.first_id is None:
        return Position(state.last_id, state.added)
    return Position(ids.before(state.first_id), state.removed)
