"""Rates, lag, the time that is left, and alarms."""

from __future__ import annotations

from penstock.spark.pipeline import Rule
from penstock.spark.pipeline.progress import Progress


def told(end: int, latest: int | None, second: int = 0, **more: object) -> dict[str, object]:
    def offset(n: int | None) -> dict[str, object]:
        at = {"id": f"{n}-0", "from": "0-0", "n": n, "from_n": 0}
        return {"v": 1, "s": {"orders": at}}

    newest = None if latest is None else offset(latest)
    source = {"numInputRows": 100, "endOffset": offset(end), "latestOffset": newest}
    return {
        "batchId": 3,
        "durationMs": {"triggerExecution": 2_000},
        "timestamp": f"2026-11-15T12:00:{second:02}.000Z",
        "sources": [source],
        **more,
    }


def test_rate_lag_and_the_time_to_catch_up_are_told() -> None:
    progress = Progress.of(told(1_000, 7_000))
    assert (progress.rows_per_s, progress.lag, progress.eta_s) == (50.0, 6_000, 120.0)
    assert str(progress) == "batch 3: 100 rows in 2.0 s, 50/s, lag 6,000, 2 min left"


def test_what_comes_in_meanwhile_makes_it_longer() -> None:
    before = Progress.of(told(900, 7_000, 0))
    progress = Progress.of(told(1_000, 7_080, 2), before)
    assert (progress.inflow_per_s, progress.eta_s) == (40.0, 608.0)
    assert str(progress).endswith("lag 6,080, 10 min left")


def test_what_comes_in_faster_than_it_is_read_is_never_caught_up() -> None:
    progress = Progress.of(told(1_000, 7_120, 2), Progress.of(told(900, 7_000, 0)))
    assert (progress.inflow_per_s, progress.eta_s, progress.is_falling_behind) == (60.0, None, True)
    assert str(progress).endswith("lag 6,120, falling behind: inflow 60/s")


def test_a_batch_that_waits_for_its_trigger_reads_no_faster_than_that() -> None:
    progress = Progress.of(told(1_000, 7_000), trigger_s=10.0)
    assert (progress.rows_per_s, progress.rate_per_s, progress.eta_s) == (50.0, 10.0, 600.0)


def test_nothing_is_left_when_the_end_is_reached() -> None:
    progress = Progress.of(told(7_000, 7_000))
    assert (progress.lag, progress.eta_s) == (0, 0.0)
    assert str(progress).endswith("lag 0")


def test_rows_that_break_a_rule_are_counted() -> None:
    counts = {"penstock_rules": {"decode_error": 0, "rule_0": 2, "rule_1": 1}}
    rules = (Rule("n > 0"), Rule("m > 0", "warn", "m is positive"))
    progress = Progress.of(told(7_000, 7_000, observedMetrics=counts), rules=rules)
    assert progress.broken == {"n > 0": 2, "m is positive": 1}
    assert str(progress).endswith("lag 0, 2 violated 'n > 0', 1 violated 'm is positive'")


def test_a_batch_that_falls_behind_is_an_alarm() -> None:
    progress = Progress.of(told(1_000, 7_000))
    assert progress.alarms(max_lag=6_000, trigger_s=0.0) == []
    assert progress.alarms(max_lag=5_999, trigger_s=1.0) == [
        "batch 3: lag 6,000 exceeds max_lag = 5,999",
        "batch 3 took 2.0 s, longer than trigger = 1 s; the pipeline is falling behind",
    ]
    assert Progress.of(told(7_000, 7_000)).alarms(max_lag=None, trigger_s=1.0) == []
