"""Which Sentinel is believed."""

from __future__ import annotations

import pytest

from penstock.redis.master_watch import Answer, newest

A, B, C = ("a", 1), ("b", 1), ("c", 1)


@pytest.mark.parametrize(
    ("answers", "known", "found"),
    [
        ([], None, None),
        ([], Answer(A, 1), Answer(A, 1)),  # all are away: what was known holds
        ([Answer(A, 1)], None, Answer(A, 1)),
        ([Answer(A, 1), Answer(B, 2)], Answer(A, 1), Answer(B, 2)),  # one knows of the failover, the other not yet
        ([Answer(B, 2), Answer(A, 1), Answer(A, 1)], Answer(B, 2), Answer(B, 2)),
        ([Answer(A, 1, is_down=True), Answer(A, 1)], Answer(A, 1, is_down=True), Answer(A, 1)),
        ([Answer(B, 1), Answer(A, 1)], Answer(A, 1), Answer(A, 1)),  # two names of one server, perhaps
        ([Answer(A, 1)], Answer(B, 2), Answer(B, 2)),  # it is cut off from the others, and we are
        ([Answer(C, 0), Answer(C, 0)], Answer(B, 2), Answer(C, 0)),  # set up anew
    ],
)
def test_the_latest_failover_counts(answers: list[Answer], known: Answer | None, found: Answer | None) -> None:
    assert newest(answers, known, sentinels=3) == found


def test_a_lone_sentinel_is_believed() -> None:
    assert newest([Answer(A, 1)], Answer(B, 2), sentinels=1) == Answer(A, 1)
