"""Decisions about messages, checked with plain values over their whole range."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock import tasks
from penstock.errors import FatalError, RetryLater, Snooze
from penstock.policy import (
    AttemptLimits,
    Backoff,
    DelaysById,
    GiveUp,
    Reason,
    RetryAfter,
    Verdict,
    after_failure,
)

counts = st.integers(0, 10_000)
limits = st.builds(AttemptLimits, st.integers(1, 100), st.none() | st.integers(1, 100))
backoffs = st.builds(Backoff, st.integers(1, 100_000), st.integers(100_000, 10_000_000), st.floats(0, 1))
plain_errors = st.sampled_from([None, ValueError("x"), KeyError(), TimeoutError(), Exception()])
chance = random.Random(1)


@given(plain_errors, counts, counts, limits, backoffs)
def test_a_failure_is_retried_until_a_limit_is_reached(
    error: Exception | None, deliveries: int, attempts: int, limits: AttemptLimits, backoff: Backoff
) -> None:
    verdict = after_failure(error, deliveries, attempts, limits, backoff, chance)
    if deliveries >= (limits.max_deliveries or 10**9) or attempts >= (limits.max_attempts or 10**9):
        assert verdict == GiveUp(Reason.MAX_DELIVERIES)
    else:
        assert isinstance(verdict, RetryAfter)
        assert verdict.counts
        assert verdict.after_ms >= 1


@given(counts, counts, limits, backoffs)
def test_fatal_is_final_whatever_the_counts(
    deliveries: int, attempts: int, limits: AttemptLimits, backoff: Backoff
) -> None:
    assert after_failure(FatalError("x"), deliveries, attempts, limits, backoff, chance) == GiveUp(Reason.FATAL)


@given(st.floats(0, 1e9), counts, counts, limits, backoffs)
def test_a_snooze_is_never_final_and_costs_no_attempt(
    delay_s: float, deliveries: int, attempts: int, limits: AttemptLimits, backoff: Backoff
) -> None:
    verdict = after_failure(Snooze(delay_s), deliveries, attempts, limits, backoff, chance)
    assert verdict == RetryAfter(round(delay_s * 1000), counts=False)


@given(st.floats(0, 1e9), counts, counts, limits, backoffs)
def test_retry_later_chooses_the_delay_but_not_the_limit(
    delay_s: float, deliveries: int, attempts: int, limits: AttemptLimits, backoff: Backoff
) -> None:
    verdict: Verdict = after_failure(RetryLater(delay_s), deliveries, attempts, limits, backoff, chance)
    if limits.is_exhausted(deliveries, attempts):
        assert verdict == GiveUp(Reason.MAX_DELIVERIES)
    else:
        assert verdict == RetryAfter(round(delay_s * 1000))


@given(st.integers(1, 10_000), backoffs, st.integers())
def test_delays_grow_to_the_longest_and_jitter_keeps_its_bounds(attempt: int, backoff: Backoff, seed: int) -> None:
    delay_ms = backoff.delay_ms(attempt, random.Random(seed))
    plain = min(backoff.initial_ms * 2 ** (attempt - 1), backoff.max_ms)
    assert delay_ms >= 1
    assert plain * (1 - backoff.jitter) - 1 <= delay_ms <= plain * (1 + backoff.jitter) + 1


def test_without_jitter_delays_double() -> None:
    backoff = Backoff(100, 1_000, 0.0)
    assert [backoff.delay_ms(n, chance) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_without_a_first_delay_there_is_none() -> None:
    assert Backoff(0, 1_000, 0.5).delay_ms(7, chance) == 0


@given(counts, st.none() | st.integers(1, 101), st.integers(0, 100))
def test_a_task_runs_once_and_as_often_again_as_its_kind_or_else_its_queue_says(
    runs: int, max_attempts: int | None, max_retry: int
) -> None:
    retry = tasks.Retry(
        max_attempts=max_attempts, initial_delay_ms=2_000, jitter=0.0, never=(KeyError,), only=(LookupError,)
    )
    is_over = runs >= (max_retry + 1 if max_attempts is None else max_attempts)
    assert (retry.after_failure(LookupError(), runs, max_retry, chance) == GiveUp(Reason.MAX_DELIVERIES)) == is_over
    assert retry.after_failure(KeyError(), runs, max_retry, chance) == GiveUp(Reason.FATAL)
    assert retry.after_failure(ValueError(), runs, max_retry, chance) == GiveUp(Reason.FATAL)
    assert retry.after_failure(Snooze(3), runs, max_retry, chance) == RetryAfter(3_000, counts=False)


def test_the_delays_of_tasks_double() -> None:
    retry = tasks.Retry(initial_delay_ms=500, max_delay_ms=3_000, jitter=0.0)
    found = [retry.after_failure(ValueError(), runs, 9, chance) for runs in range(1, 5)]
    assert found == [RetryAfter(500), RetryAfter(1_000), RetryAfter(2_000), RetryAfter(3_000)]


@given(counts, counts, limits)
def test_the_last_chance_is_the_run_after_which_nothing_is_left(
    deliveries: int, attempts: int, limits: AttemptLimits
) -> None:
    assert limits.is_last_chance(deliveries, attempts) == limits.is_exhausted(deliveries + 1, attempts + 1)
    if limits.is_exhausted(deliveries, attempts):
        assert limits.is_last_chance(deliveries, attempts)


@given(counts, counts, limits)
def test_every_message_ends_after_at_most_its_deliveries(deliveries: int, attempts: int, limits: AttemptLimits) -> None:
    runs = 0
    while not limits.is_exhausted(deliveries, attempts):
        deliveries, attempts, runs = deliveries + 1, attempts + 1, runs + 1
    assert limits.max_deliveries is None or runs <= limits.max_deliveries


def test_what_keeps_failing_waits_longer_up_to_a_minute_and_begins_anew_once_it_succeeds() -> None:
    delays = DelaysById()
    found = [delays.next_ms("a") for _ in range(8)]
    assert found[:3] == [(1_000, True), (2_000, False), (4_000, False)]
    assert found[-1] == (60_000, False)
    assert delays.next_ms("b") == (1_000, True)
    delays.forget("a")
    assert (len(delays), delays.next_ms("a")) == (1, (1_000, True))
