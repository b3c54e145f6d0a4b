"""Durations and moments, as people write them on the command line and in files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.times import duration_s, milliseconds_of, moment_ms, seconds_of

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("10 minutes", 600), ("1 day", 86_400),
        ("1h 30 min", 5400), (" 0s ", 0), ("2W", 1_209_600), ("1 hour 5 sec", 3605),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, expected: float) -> None:
    assert duration_s(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "90", "1x", "-5s", "h", "1h30", "5s!", "1 2s", "1e3s", "\u0661s", "9" * 400 + "d", "1s" * 99]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2027-01-15T08:00Z", NOW_MS), ("2027-01-15T08:00", NOW_MS), ("2027-01-15T10:00+02:00", NOW_MS),
        ("1800000000000", NOW_MS), ("2h", NOW_MS - 7_200_000), ("10 minutes", NOW_MS - 600_000), ("0s", NOW_MS),
        ("9000w", 0),
    ],
)  # fmt: skip
def test_moments_are_utc_unless_they_say_otherwise(text: str, expected: int) -> None:
    assert moment_ms(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "2027-13-01", "1" * 50, "1969-12-31T23:59Z"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time"):
        moment_ms(text, NOW_MS)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert (seconds_of(text) or 0) >= 0
    assert (milliseconds_of(text) or 0) >= 0
