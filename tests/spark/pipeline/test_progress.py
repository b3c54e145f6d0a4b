"""Rates, lag, the time that is left, and alarms."""

from __future__ import annotations

from penstock.spark.pipeline.progress import Progress


def told(end: int, latest: int | None) -> dict[str, object]:
    def offset(n: int | None) -> dict[str, object]:
        at = {"id": f"{n}-0", "from": "0-0", "n": n, "from_n": 0}
        return {"v": 1, "s": {"orders": at}}

    newest = None if latest is None else offset(latest)
    source = {"numInputRows": 100, "endOffset": offset(end), "latestOffset": newest}
    return {
        "batchId": 3,
        "durationMs": {"triggerExecution": 2_000},
        "timestamp": "2026-11-15T12:00:00.000Z",
        "sources": [source],
    }


def test_rate_lag_and_the_time_to_catch_up_are_told() -> None:
    progress = Progress.of(told(1_000, 7_000))
    assert (progress.rows_per_s, progress.lag, progress.eta_s) == (50.0, 6_000, 120.0)
    assert str(progress) == "batch 3: 100 rows in 2.0 s, 50/s, lag 6,000, 2 min to go"


def test_nothing_is_left_when_the_end_is_reached() -> None:
    progress = Progress.of(told(7_000, 7_000))
    assert (progress.lag, progress.eta_s) == (0, 0.0)
    assert str(progress).endswith("lag 0")


def test_a_batch_that_falls_behind_is_an_alarm() -> None:
    progress = Progress.of(told(1_000, 7_000))
    assert progress.alarms(max_lag=6_000, trigger_s=0.0) == []
    assert progress.alarms(max_lag=5_999, trigger_s=1.0) == [
        "batch 3: lag 6,000 is above max_lag = 5,999",
        "batch 3 took 2.0 s, longer than trigger = 1 s: it falls behind",
    ]
