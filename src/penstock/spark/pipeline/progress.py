"""The progress of a pipeline: rates, lag and remaining time, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from penstock.spark.pipeline.plan import COUNTS, labels_of
from penstock.spark.pipeline.steps import Rule
from penstock.spark.source.offsets import lag


@dataclass(frozen=True)
class Progress:
    """One batch. `lag` is None if the server does not know how many entries are left to read.

    `inflow_per_s` is how many entries were added per second since the previous batch, None for the first batch of a
    run. `rate_per_s` is how many are read per second while others wait. `broken` counts the rows that broke each rule.
    """

    batch: int
    rows: int
    seconds: float
    rows_per_s: float
    lag: int | None
    time: str
    rate_per_s: float = 0.0
    inflow_per_s: float | None = None
    broken: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        reported: Mapping[str, Any],
        before: Progress | None = None,
        *,
        rules: Sequence[Rule] = (),
        trigger_s: float = 0.0,
    ) -> Progress:
        """Parse Spark's progress of a batch; `before` is the previous batch."""
        source = reported["sources"][0]
        counts = lag(source["latestOffset"], source["endOffset"]).values()
        known = [count for count in counts if count is not None]
        left = sum(known) if len(known) == len(counts) else None
        seconds = reported["durationMs"].get("triggerExecution", 0) / 1000
        rows = source["numInputRows"] or 0
        each_s = max(seconds, trigger_s)  # after a short batch, Spark waits for the trigger
        return cls(
            batch=reported["batchId"],
            rows=rows,
            seconds=seconds,
            rows_per_s=rows / seconds if seconds else 0.0,
            lag=left,
            time=reported["timestamp"],
            rate_per_s=rows / each_s if each_s else 0.0,
            inflow_per_s=_inflow(before, rows, left, reported["timestamp"]),
            broken=_broken(reported, rules),
        )

    @property
    def eta_s(self) -> float | None:
        """Seconds until it has caught up at the current inflow; None if unknown or never."""
        if self.lag == 0:
            return 0.0
        gain = self.rate_per_s - (self.inflow_per_s or 0.0)
        return self.lag / gain if self.lag is not None and gain > 0 else None

    @property
    def is_falling_behind(self) -> bool:
        """Whether entries wait and more are added than are read."""
        return bool(self.lag) and self.inflow_per_s is not None and self.inflow_per_s > self.rate_per_s

    def __str__(self) -> str:
        left = f", {_spoken(self.eta_s)} left" if self.eta_s else ""
        if self.is_falling_behind:
            assert self.inflow_per_s is not None
            left = f", falling behind: inflow {self.inflow_per_s:,.0f}/s"
        lag = "lag unknown" if self.lag is None else f"lag {self.lag:,}"
        broken = "".join(f", {count:,} violated {rule!r}" for rule, count in self.broken.items())
        return (
            f"batch {self.batch}: {self.rows:,} rows in {self.seconds:.1f} s, {self.rows_per_s:,.0f}/s, "
            f"{lag}{left}{broken}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "eta_s": self.eta_s}

    def alarms(self, max_lag: int | None, trigger_s: float) -> list[str]:
        """Return alarms; a batch that leaves no entries is never too slow."""
        found = []
        if max_lag is not None and self.lag is not None and self.lag > max_lag:
            found.append(f"batch {self.batch}: lag {self.lag:,} exceeds max_lag = {max_lag:,}")
        if trigger_s and self.lag != 0 and self.seconds > trigger_s:
            found.append(slow_batch(self.batch, self.seconds, trigger_s, is_over=True))
        return found


def _inflow(before: Progress | None, rows: int, lag: int | None, time: str) -> float | None:
    if before is None or before.lag is None or lag is None:
        return None
    passed_s = (datetime.fromisoformat(time) - datetime.fromisoformat(before.time)).total_seconds()
    return max(0.0, (rows + lag - before.lag) / passed_s) if passed_s > 0 else None


def _broken(reported: Mapping[str, Any], rules: Sequence[Rule]) -> dict[str, int]:
    counts = (reported.get("observedMetrics") or {}).get(COUNTS) or {}
    return {label: counts[name] for name, label in labels_of(rules).items() if counts.get(name)}


def slow_batch(batch: int, seconds: float, trigger_s: float, *, is_over: bool) -> str:
    """Return the alarm for a batch that takes too long."""
    what = "took" if is_over else "has been running for"
    return (
        f"batch {batch} {what} {seconds:.1f} s, longer than trigger = {trigger_s:g} s; the pipeline is falling behind"
    )


def _spoken(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
