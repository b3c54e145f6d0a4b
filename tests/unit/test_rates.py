"""Rates over the last 60 seconds, in constant time and bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.counters import RateTracker
from tests.helpers.threads import join, start


class FakeClock:
    """Stands still until it is told to advance."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self._now_s = now_s

    def monotonic(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_nothing_recorded_is_a_rate_of_zero(clock: FakeClock) -> None:
    assert RateTracker(clock.monotonic).rate() == 0.0


def test_a_burst_younger_than_a_second_counts_as_if_it_took_one(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    rates.record(50)
    assert rates.rate() == 50.0
    clock.advance(0.5)
    assert rates.rate() == 50.0


def test_the_rate_is_the_sum_by_the_time_since_the_first_event(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    for _ in range(10):
        rates.record(20)
        clock.advance(1)
    assert rates.rate() == pytest.approx(20.0)


def test_events_older_than_the_window_are_forgotten(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    rates.record(1_000_000)
    clock.advance(59)
    rates.record(6)
    assert rates.rate() == pytest.approx(1_000_006 / 59)
    clock.advance(2)
    assert rates.rate() == pytest.approx(6 / 2)


def test_an_idle_hour_leaves_nothing(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    rates.record(5)
    clock.advance(3_600)
    assert rates.rate() == 0.0
    rates.record(3)
    assert rates.rate() == 3.0


def test_memory_stays_bounded(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    for _ in range(50_000):
        rates.record()
        clock.advance(0.01)
    assert len(rates._closed) <= 601
    assert rates.rate() == pytest.approx(100, rel=0.01)


def test_recording_nothing_is_no_event(clock: FakeClock) -> None:
    rates = RateTracker(clock.monotonic)
    rates.record(0)
    clock.advance(10)
    rates.record(30)
    assert rates.rate() == 30.0


def test_threads_do_not_disturb_each_other() -> None:
    rates = RateTracker()

    def record_many() -> None:
        for _ in range(20_000):
            rates.record()

    tasks = [start(record_many) for _ in range(4)]
    for task in tasks:
        join(task)
    counted = sum(count for _, count in rates._closed) + rates._open_count
    assert counted == pytest.approx(80_000, rel=0.001)
    assert rates._closed_total == sum(count for _, count in rates._closed)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 1_000)), max_size=60))
def test_the_rate_agrees_with_a_plain_list_of_samples(steps: list[tuple[float, int]]) -> None:
    clock = FakeClock(0.0)
    rates = RateTracker(clock.monotonic)
    samples: list[tuple[float, int]] = []
    for pause_s, count in steps:
        clock.advance(pause_s)
        rates.record(count)
        samples.append((clock.monotonic(), count))
    now = clock.monotonic()
    surely = [(at, n) for at, n in samples if n and at >= now - 59.9]
    possibly = [(at, n) for at, n in samples if n and at >= now - 60.0]
    least = sum(n for _, n in surely) / max(now - min((at for at, _ in possibly), default=now) + 0.1, 1.0)
    most = sum(n for _, n in possibly) / max(now - min((at for at, _ in surely), default=now), 1.0)
    assert least * 0.999 <= rates.rate() <= most * 1.001 + 1e-9
