"""The clocks agree with what they stand for."""

from __future__ import annotations

import time

import pytest

from penstock.clock import Clock, FakeClock, SystemClock


def test_the_system_clock_tells_the_systems_times() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic(), time.time_ns() // 1_000_000
    now = clock.monotonic(), clock.wall_ms()
    after = time.monotonic(), time.time_ns() // 1_000_000
    assert before[0] <= now[0] <= after[0]
    assert before[1] <= now[1] <= after[1]


def test_the_fake_clock_moves_only_when_told_to() -> None:
    clock: Clock = FakeClock(monotonic_s=5.0, wall_ms=1_000)
    assert (clock.monotonic(), clock.wall_ms()) == (5.0, 1_000)
    assert (clock.monotonic(), clock.wall_ms()) == (5.0, 1_000)


def test_advancing_moves_both_clocks() -> None:
    clock = FakeClock(monotonic_s=5.0, wall_ms=1_000)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall_ms()) == (7.5, 3_500)


def test_a_wall_clock_that_is_set_back_leaves_monotonic_time_alone() -> None:
    clock = FakeClock(monotonic_s=5.0, wall_ms=10_000)
    clock.jump_wall(-3)
    assert (clock.monotonic(), clock.wall_ms()) == (5.0, 7_000)


def test_monotonic_time_refuses_to_go_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)


def test_many_small_steps_add_up_on_the_wall() -> None:
    clock = FakeClock(wall_ms=0)
    for _ in range(1_000):
        clock.advance(0.000_5)
    assert clock.wall_ms() in (499, 500)
