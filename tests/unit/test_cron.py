"""Cron rules are read, and come true when they should."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.tasks.schedule import CronRule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "moment", "expected"),
    [
        ("* * * * *", "2026-01-01 00:00:00", "2026-01-01 00:01"),
        ("* * * * *", "2026-01-01 00:00:59", "2026-01-01 00:01"),
        ("*/15 * * * *", "2026-01-01 00:14", "2026-01-01 00:15"),
        ("5-20/5 * * * *", "2026-01-01 00:20", "2026-01-01 01:05"),
        ("0 6 * * *", "2026-01-01 06:00", "2026-01-02 06:00"),
        ("0 6 * * mon-fri", "2026-01-02 06:00", "2026-01-05 06:00"),
        ("0 0 1 * *", "2026-01-15 00:00", "2026-02-01 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 13 * fri", "2026-02-01 00:00", "2026-02-06 00:00"),  # either is enough
        ("0 0 * * 7", "2026-01-01 00:00", "2026-01-04 00:00"),
        ("0 0 * dec sun", "2026-01-01 00:00", "2026-12-06 00:00"),
        ("1,2,30 1 * * *", "2026-01-01 01:02", "2026-01-01 01:30"),
        ("@hourly", "2026-01-01 00:30", "2026-01-01 01:00"),
        ("@yearly", "2026-01-01 00:00", "2027-01-01 00:00"),
        ("10/20 * * * *", "2026-01-01 00:10", "2026-01-01 00:30"),
    ],
)
def test_the_next_time(rule: str, moment: str, expected: str) -> None:
    assert CronRule.parse(rule).after(at(moment)) == at(expected)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "weekday"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "step"),
        ("a * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("* * * foo *", "month"),
        ("0 0 30 2 *", "never"),
        ("@often", "five fields"),
    ],
)
def test_what_is_no_rule_is_refused_and_the_field_is_named(rule: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        CronRule.parse(rule)


def test_times_are_those_of_the_wall_clock() -> None:
    rule = CronRule.parse("30 2 * * *", "Europe/Vienna")
    assert rule.after(at("2026-01-01 00:00")) == at("2026-01-01 01:30")
    assert rule.after(at("2026-07-01 00:00")) == at("2026-07-01 00:30")
    assert rule.after(at("2026-03-28 12:00")) == at("2026-03-30 00:30")  # on the 29th there is no 02:30
    assert rule.after(at("2026-10-24 12:00")) == at("2026-10-25 00:30")  # which comes twice: the first
    assert rule.after(at("2026-10-25 00:30")) == at("2026-10-26 01:30")
    with pytest.raises(ConfigurationError, match="time zone"):
        CronRule.parse("* * * * *", "Europe/Atlantis")


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 */5 * * *", "15 3 1,15 * *", "0 0 * * mon"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),  # noqa: DTZ001
)
def test_the_next_time_is_later_and_nothing_lies_between(rule: str, moment: datetime) -> None:
    parsed = CronRule.parse(rule)
    start = moment.replace(tzinfo=UTC)
    following = parsed.after(start)
    assert following > start
    assert parsed.after(following - timedelta(minutes=1)) == following or following - start <= timedelta(minutes=1)
