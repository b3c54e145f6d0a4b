"""What a list of streams says about each of them first."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model import Lag
from penstock.ops.condition import StreamCondition, condition_of
from penstock.ops.model import GroupInfo, GroupKind, GroupLag, StreamInfo, StreamKind

NONE, SOME, LATE = Lag(0, 0.0), Lag(7, 1.0), Lag(7, 1_000.0)


def condition(
    lag: Lag, *, rates: tuple[float, float] | None = (5.0, 5.0), dead_letters: int = 0, **changes: Any
) -> StreamCondition:
    told = {"name": "shipping", "kind": GroupKind.CONSUMERS, "consumers": 2, "pending": 0} | changes
    group = GroupInfo(stream="orders", last_delivered_id="1-0", lag=lag, **told)
    stream = StreamInfo("orders", StreamKind.STREAM, "", 7, "1-0", "7-0", "7-0", 7, (group,), 1, "dlq", dead_letters)
    in_per_s, out_per_s = rates or (None, None)
    seen = GroupLag("orders", group.name, lag.count, True, lag.age_s, group.pending, in_per_s, out_per_s)
    return condition_of(stream, [seen])


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("idle", {"lag": NONE}),
        ("working", {"lag": SOME}),
        ("working", {"lag": NONE, "pending": 3, "oldest_pending_idle_ms": 50_000}),
        ("working", {"lag": LATE, "rates": None}),
        ("working", {"lag": LATE, "rates": (0.0, 0.0), "pending": 3}),
        ("dead letters", {"lag": SOME, "dead_letters": 1}),
        ("falling behind", {"lag": SOME, "rates": (9.0, 5.0), "dead_letters": 1}),
        ("stuck", {"lag": LATE, "rates": (5.0, 0.0)}),
        ("stuck", {"lag": NONE, "pending": 3, "oldest_pending_idle_ms": 70_000}),
        ("working", {"lag": NONE, "pending": 1, "oldest_pending_idle_ms": 70_000, "name": "queue"}),
        ("stuck", {"lag": NONE, "pending": 1, "oldest_pending_idle_ms": 400_000, "name": "queue"}),
        ("no consumers", {"lag": SOME, "consumers": 0}),
        ("idle", {"lag": LATE, "consumers": 0, "kind": GroupKind.POSITION, "rates": (0.0, 0.0)}),
    ],
)
def test_what_is_worst_is_said_first(text: str, given: dict[str, Any]) -> None:
    assert condition(**given).text == text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lag": LATE, "rates": (5.0, 0.0)}, "group shipping reads nothing: 7 wait, the oldest for 16 min 40 s"),
        (
            {"lag": NONE, "pending": 3, "oldest_pending_id": "5-1", "oldest_pending_idle_ms": 70_000},
            "in group shipping no consumer has worked on 5-1 for 1 min 10 s",
        ),
        ({"lag": SOME, "consumers": 0}, "group shipping has 7 unread messages"),
        ({"lag": SOME, "rates": (9.0, 5.0)}, "for group shipping 9.0/s come in, but only 5.0/s go out"),
    ],
)
def test_why_a_stream_needs_somebody_is_said(given: dict[str, Any], why: str) -> None:
    assert condition(**given).why == why
