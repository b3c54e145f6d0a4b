"""Axes, plots and the page, for little data and much, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.model import Lag
from penstock.ops.model import GroupInfo, GroupKind
from penstock.spark.report import Figures, Target, TimeAxis, Window, render
from penstock.spark.report.figures import Aggregate, Aggregates, Cause, Failures
from penstock.spark.report.page import check_dashboard
from penstock.spark.report.plots import LEFT, WIDTH, Scale, bars_by_name, bars_over_time, lines_over_time
from penstock.units import count, duration
from tests.spark.report.pages import Page

NOON_MS = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 24 * 3_600_000
DAY = Window(NOON_MS - DAY_MS, NOON_MS)
TARGET = Target("orders", {"url": "redis://nowhere"})

times = st.integers(0, 2**41)


@given(low=times, span=st.integers(1, 2**41), rows=st.integers(0, 10**9), data=st.data())
def test_an_axis_holds_the_data_in_a_handful_of_intervals(low: int, span: int, rows: int, data: st.DataObject) -> None:
    window = Window(low, low + span)
    first = data.draw(st.integers(low, low + span - 1))
    last = data.draw(st.integers(first, low + span - 1))
    axis = TimeAxis.fitting(window, first, last, rows)
    assert axis.low <= first <= last < axis.high
    assert 12 <= axis.count <= 120
    assert axis.low % axis.width_ms == 0
    assert 1 <= len(axis.ticks) <= 10
    assert all(axis.low <= at <= axis.high for at, _ in axis.ticks)


def test_two_minutes_of_data_in_a_day_have_an_axis_of_two_minutes() -> None:
    axis = TimeAxis.fitting(DAY, NOON_MS - 3_600_000, NOON_MS - 3_480_000, 50)
    assert axis.high - axis.low < 3 * 60_000
    assert [text for _, text in axis.ticks][:2] == ["11:00", "11:00:30"] or axis.ticks[0][1].startswith("11:0")


def test_a_single_message_is_one_bar_among_seconds() -> None:
    axis = TimeAxis.fitting(DAY, NOON_MS - 60_000, NOON_MS - 60_000, 1)
    assert (axis.count, axis.width_ms) == (12, 1_000)


def test_data_that_fill_most_of_the_window_have_the_axis_of_the_window() -> None:
    axis = TimeAxis.fitting(DAY, NOON_MS - 20 * 3_600_000, NOON_MS - 1, 100_000)
    assert (axis.low, axis.high) == (DAY.low, DAY.high)
    assert [text for _, text in axis.ticks][:4] == ["12:00", "15:00", "18:00", "21:00"]
    assert "Nov 15" in [text for _, text in axis.ticks]


@pytest.mark.parametrize("hours", [0.001, 1, 24, 24 * 7, 24 * 365, 24 * 365 * 50])
def test_a_window_without_data_has_an_axis_too(hours: float) -> None:
    now = datetime(2026, 11, 15, 12, 0, 0, 500_000, tzinfo=UTC)
    window = Window.of(now - timedelta(hours=hours), now, now)
    axis = TimeAxis.fitting(window, None, None, 0)
    assert axis.low <= window.low < window.high <= axis.high


@given(st.just(0.0) | st.floats(0.001, 1e15))
def test_the_greatest_value_fits_below_a_few_lines(top: float) -> None:
    scale = Scale.of(top)
    assert top <= scale.step * scale.steps * 1.000001
    assert 1 <= scale.steps <= 5


@pytest.mark.parametrize("top", [1, 2, 3, 7, 12, 99, 1_000, 12_345])
def test_counts_are_measured_in_whole_numbers(top: int) -> None:
    assert Scale.of(top, 1).step % 1 == 0
    assert len({tick.text for tick in Scale.of(top, 1).ticks(count)}) == Scale.of(top, 1).steps + 1


@pytest.mark.parametrize("number", [1, 2, 5, 40, 120])
def test_no_bar_is_a_slab(number: int) -> None:
    plot = bars_by_name("a", "", "", [f"2026-11-{n:02}" for n in range(number)], [3] * number, count)
    assert len(plot.bars) == number
    assert max(bar.width for bar in plot.bars) < WIDTH / 20
    assert max(bar.x + bar.width for bar in plot.bars) <= WIDTH
    assert min(b.at - a.at for a, b in zip(plot.x_ticks, plot.x_ticks[1:], strict=False)) > 70 if number > 1 else True


def test_a_bar_stands_where_its_time_is() -> None:
    axis = TimeAxis(NOON_MS, 60_000, 60)
    plot = bars_over_time("a", "", "", axis, [0] * 30 + [5] + [0] * 29, count)
    [bar] = plot.bars
    tick = next(tick for tick in plot.x_ticks if tick.text == "12:30")
    assert bar.label == "2026-11-15 12:30"
    assert abs(bar.x - tick.at) < 2
    assert bar.value == "5"


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    axis = TimeAxis(NOON_MS, 60_000, 12)
    plot = lines_over_time("a", "", "", axis, [("p50", [1.0, 2.0, None, 3.0, None, *[None] * 7])], duration)
    [line] = plot.lines
    assert [len(piece.split(" ")) for piece in line.pieces] == [2]
    assert len(line.dots) == 1
    assert line.dots[0][0] > LEFT


def figures(**more: object) -> Figures:
    axis = TimeAxis.fitting(DAY, NOON_MS - 60_000, NOON_MS - 60_000, 1)
    whole = Aggregate(None, 3, 30)
    start = (NOON_MS - 60_000) // 1000 * 1000
    messages = Aggregates(whole, {"bucket": [Aggregate(start, 3, 30)], "kind": [Aggregate("a\x1b[1m", 3, 30)]})
    return Figures(axis, messages, **more)  # type: ignore[arg-type]


def test_a_page_of_one_moment_says_where_its_plots_are_and_escapes_what_cannot_be_seen() -> None:
    page = Page(render(figures(), TARGET, DAY, NOON_MS))
    assert page.bars == [36.0]
    assert "there were no messages in the rest of the period" in page.text
    assert page.tiles["Failure rate"] == "0 % 0 of 3"
    assert page.row(r"a\x1b[1m")[1] == "3"
    assert "Lag now" not in page.tiles


@pytest.mark.parametrize(
    ("failed", "is_trimmed", "shown"),
    [(1, False, "33.33 % 1 of 3"), (1, True, "≤ 33.33 % 1 of 3"), (4, True, "\N{EN DASH}")],
)
def test_a_failure_rate_is_not_told_beyond_what_is_known(failed: int, is_trimmed: bool, shown: str) -> None:
    trimmed = ("Stream orders begins later now.",) if is_trimmed else ()
    page = Page(render(figures(failures=Failures(failed), trimmed=trimmed), TARGET, DAY, NOON_MS))
    assert page.tiles["Failure rate"] == shown


def test_groups_show_their_lag_and_what_is_pending() -> None:
    behind = GroupInfo(
        "orders", "a & b", GroupKind.CONSUMERS, 2, 5, "1-1", Lag(1_200, 90.0, is_exact=False), "1-1", 4_000
    )
    idle = GroupInfo("orders", "idle", GroupKind.CONSUMERS, 0, 0, "1-1", Lag(0, 0.0))
    page = Page(render(figures(groups=(behind, idle)), TARGET, DAY, NOON_MS, "https://desk/ops"), "https://desk/ops")
    assert page.tiles["Lag now"] == "≤ 1,200"
    assert page.tiles["Pending now"] == "5"
    assert page.row("a & b") == ["a & b", "orders", "≤ 1,200", "1 min 30 s", "5", "4.0 s", "0", "2"]
    assert page.row("idle")[2:6] == ["0", "\N{EN DASH}", "0", "\N{EN DASH}"]
    assert "https://desk/ops/group?stream=orders&group=a+%26+b" in page.links


def test_dead_letters_are_links_or_a_command() -> None:
    cause = Cause("fatal", "ValueError", "no price", 2, NOON_MS - 9_000, NOON_MS - 8_000, "1-1")
    dead = Aggregates(Aggregate(None, 2), {"bucket": [Aggregate((NOON_MS - 60_000) // 1000 * 1000, 2)]})
    given = figures(dead=dead, causes=(cause,), cause_count=1)
    target = Target("big orders", {"url": "redis://nowhere"})
    page = Page(render(given, target, DAY, NOON_MS))
    assert "penstock dlq show --queue 'big orders_dlq' 1-1" in page.text
    assert "--since 2026-11-14T12:00:00Z --until 2026-11-15T12:00:00Z" in page.text
    page = Page(render(given, target, DAY, NOON_MS, "http://desk"), "http://desk")
    assert "penstock dlq" not in page.text
    assert "http://desk/dead-letter?stream=big+orders_dlq&id=1-1" in page.links
    assert any("reason=fatal&error=ValueError&since=2026-11-14T12%3A00%3A00Z" in link for link in page.links)


@pytest.mark.parametrize("address", ["javascript:alert(1)", "desk:8080", "http://", "http://desk/?a=b", "ftp://desk"])
def test_what_is_no_address_of_a_dashboard_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="must be the address of a dashboard"):
        check_dashboard(address)
