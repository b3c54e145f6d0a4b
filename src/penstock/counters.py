"""What producers, consumers and workers count: totals, rates and durations."""

from __future__ import annotations

import bisect
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.model import ConsumerMetrics, PassReport

BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
OUTCOMES = ("ok", "error", "skip", "retry", "snooze", "dead", "refused", "unsaved")
_WINDOW_S = 60.0
_BUCKET_S = 0.1
_MIN_SPAN_S = 1.0


class RateTracker:
    """Counts events and computes their rate over the last 60 seconds.

    Guarantees: at most some 600 buckets are kept whatever is recorded; `record` takes constant time; both
    methods may be called from any thread. Events within 100 ms share a bucket, so the far edge of the window
    is exact to 100 ms.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._closed: deque[tuple[float, int]] = deque()
        self._closed_total = 0
        self._opened_at = float("-inf")
        self._closes_at = float("-inf")
        self._open_count = 0

    def record(self, count: int = 1) -> None:
        """Count events that happened just now."""
        now = self._now()
        if now >= self._closes_at:
            self._open_bucket(now)
        # Outside the lock, which would more than double the cost: the interpreter does not change threads
        # within this statement, and without a GIL the worst is a rate that is off by one.
        self._open_count += count

    def rate(self) -> float:
        """Return events per second: their sum by the time since the first of the window, at least a second."""
        now = self._now()
        with self._lock:
            self._forget_before(now - _WINDOW_S)
            total = self._closed_total + self._open_count
            if not total:
                return 0.0
            first = self._closed[0][0] if self._closed else self._opened_at
        return total / max(now - first, _MIN_SPAN_S)

    def _open_bucket(self, now: float) -> None:
        with self._lock:
            if now < self._closes_at:  # another thread was faster
                return
            count, self._open_count = self._open_count, 0
            if count:
                self._closed.append((self._opened_at, count))
                self._closed_total += count
            self._opened_at = now
            self._closes_at = now + _BUCKET_S
            self._forget_before(now - _WINDOW_S)

    def _forget_before(self, horizon: float) -> None:
        while self._closed and self._closed[0][0] < horizon:
            self._closed_total -= self._closed.popleft()[1]
        if self._opened_at < horizon:
            self._open_count = 0


class Tally:
    """Counts what a consumer does; the numbers of acknowledged messages come from the server's replies."""

    def __init__(self) -> None:
        self.read = self.acked = self.dead = self.dead_trimmed = self.errors = 0
        self.retried = self.reclaimed = self.handed_back = self.lease_lost = self.missing = 0
        self._rate_in, self._rate_out = RateTracker(), RateTracker()
        self._first_read: float | None = None
        self._lock = threading.Lock()

    def count(self, **counts: int) -> None:
        """Add to counters by their names; workers of the sync API call this from many threads."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def count_read(self, count: int) -> None:
        """Count messages that were read."""
        if count:
            if self._first_read is None:
                self._first_read = time.monotonic()
            self.read += count  # atomic, because nothing is called
            self._rate_in.record(count)

    def count_acked(self, count: int) -> None:
        """Count messages that the server acknowledged."""
        if count:
            self.acked += count  # likewise
            self._rate_out.record(count)

    def metrics(self) -> ConsumerMetrics:
        """Return the counters as the public value."""
        uptime = 0.0 if self._first_read is None else time.monotonic() - self._first_read
        tps_in, tps_out = round(self._rate_in.rate(), 2), round(self._rate_out.rate(), 2)
        return ConsumerMetrics(
            total_read=self.read,
            total_acked=self.acked,
            total_dlq=self.dead,
            total_errors=self.errors,
            tps_in=tps_in,
            tps_out=tps_out,
            tps_total=round(tps_in + tps_out, 2),
            avg_tps=round(self.acked / uptime, 2) if uptime >= 1 else 0.0,
            uptime_secs=round(uptime, 1),
            total_retried=self.retried,
            total_reclaimed=self.reclaimed,
            total_handed_back=self.handed_back,
            total_lease_lost=self.lease_lost,
            total_missing=self.missing,
            total_dlq_trimmed=self.dead_trimmed,
        )

    def mark(self) -> tuple[int, ...]:
        """Return where the counters stand, for a report."""
        return self.read - self.reclaimed, self.reclaimed, self.acked, self.retried, self.dead, self.missing

    def report_since(self, mark: tuple[int, ...]) -> PassReport:
        """Return what was counted since the mark."""
        return PassReport(*(now - then for now, then in zip(self.mark(), mark, strict=True)))


@dataclass(slots=True)
class KindTally:
    """The counts of one kind."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))


class WorkerTally:
    """The counts of one worker, for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kinds: dict[str, KindTally] = {}
        self.started_s = time.time()
        self.running = 0
        self.waiting = 0  # popped, and not begun
        self.backend_failures = 0

    def of(self, kind: str) -> KindTally:
        """Return the counts of a kind."""
        found = self.kinds.get(kind)
        if found is None:
            with self._lock:
                found = self.kinds.setdefault(kind, KindTally())
        return found

    def count(self, kind: str, outcome: str, number: int = 1) -> None:
        """Count outcomes."""
        outcomes = self.of(kind).outcomes
        with self._lock:
            outcomes[outcome] += number

    def record_duration(self, kind: str, seconds: float) -> None:
        """Record the duration of a run."""
        tally = self.of(kind)
        with self._lock:
            tally.seconds += seconds
            tally.buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1

    def total(self, outcome: str) -> int:
        """Return how often an outcome was counted, over all kinds."""
        return sum(tally.outcomes[outcome] for tally in list(self.kinds.values()))
