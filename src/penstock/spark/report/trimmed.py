"""What the page must say about messages that are not there any more."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import ids
from penstock.spark.reading.catalogue import StreamState
from penstock.spark.report.moments import shown
from penstock.spark.report.subject import Subject
from penstock.spark.report.window import Window


def notes_of(subject: Subject, states: Mapping[str, StreamState], window: Window) -> tuple[str, ...]:
    """Return a sentence for each stream of which a part of the window is gone."""
    if subject.archive is not None:
        return ()
    return tuple(
        _sentence(name, state) for name, state in states.items() if name in subject.names() and _is_cut(state, window)
    )


def _sentence(name: str, state: StreamState) -> str:
    gone = f"{state.removed:,} entries were trimmed or deleted"
    if state.first_id is None:
        return f"Stream {name} is empty now: {gone}, and are counted nowhere."
    return (
        f"Stream {name} begins at {shown(ids.parse(state.first_id)[0])} now: {gone} before, and those that belong to "
        "this time are counted nowhere. An archive would have them."
    )


def _is_cut(state: StreamState, window: Window) -> bool:
    if not state.removed:
        return False
    return state.first_id is None or ids.parse(state.first_id)[0] > window.low
