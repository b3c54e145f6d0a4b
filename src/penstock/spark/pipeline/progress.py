"""How a pipeline gets on: rates, lag and the time that is left, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.spark.reading.offsets import lag


@dataclass(frozen=True)
class Progress:
    """One batch. `lag` is None where the server cannot tell how much is left to read."""

    batch: int
    rows: int
    seconds: float
    rows_per_s: float
    lag: int | None
    time: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Progress:
        """Take what Spark tells of a batch."""
        source = told["sources"][0]
        behind = lag(source["latestOffset"], source["endOffset"]).values()
        known = [count for count in behind if count is not None]
        seconds = told["durationMs"].get("triggerExecution", 0) / 1000
        rows = source["numInputRows"] or 0
        return cls(
            batch=told["batchId"],
            rows=rows,
            seconds=seconds,
            rows_per_s=rows / seconds if seconds else 0.0,
            lag=sum(known) if len(known) == len(behind) else None,
            time=told["timestamp"],
        )

    @property
    def eta_s(self) -> float | None:
        """How long it takes to catch up at this rate; None if that cannot be told."""
        if self.lag == 0:
            return 0.0
        return self.lag / self.rows_per_s if self.lag is not None and self.rows_per_s else None

    def __str__(self) -> str:
        eta = "" if not self.eta_s else f", {_spoken(self.eta_s)} to go"
        behind = "lag unknown" if self.lag is None else f"lag {self.lag:,}"
        return (
            f"batch {self.batch}: {self.rows:,} rows in {self.seconds:.1f} s, {self.rows_per_s:,.0f}/s, {behind}{eta}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "eta_s": self.eta_s}

    def alarms(self, max_lag: int | None, trigger_s: float) -> list[str]:
        """Return what somebody should look at."""
        found = []
        if max_lag is not None and self.lag is not None and self.lag > max_lag:
            found.append(f"batch {self.batch}: lag {self.lag:,} is above max_lag = {max_lag:,}")
        if trigger_s and self.seconds > trigger_s:
            found.append(slow_batch(self.batch, self.seconds, trigger_s, is_over=True))
        return found


def slow_batch(batch: int, seconds: float, trigger_s: float, *, is_over: bool) -> str:
    """Return what is said of a batch that takes too long."""
    what = "took" if is_over else "has taken"
    so_far = "" if is_over else " and is not done"
    return f"batch {batch} {what} {seconds:.1f} s, longer than trigger = {trigger_s:g} s{so_far}: it falls behind"


def _spoken(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
