"""The counters of one consumer."""

from __future__ import annotations

import threading
import time

from penstock.model import ConsumerMetrics, PassReport
from penstock.rates import RateTracker


class Tally:
    """Counts what a consumer does; the numbers of acknowledged messages come from the server's replies."""

    def __init__(self) -> None:
        self.read = self.acked = self.dead = self.dead_trimmed = self.errors = 0
        self.retried = self.reclaimed = self.handed_back = self.lease_lost = self.missing = 0
        self._rate_in, self._rate_out = RateTracker(), RateTracker()
        self._first_read: float | None = None
        self._lock = threading.Lock()

    def count(self, **counts: int) -> None:
        """Add to counters by their names; workers of the sync half do so from many threads."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def count_read(self, count: int) -> None:
        """Count messages that came in."""
        if count:
            if self._first_read is None:
                self._first_read = time.monotonic()
            self.read += count  # no thread comes in between: nothing is called
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

    def _numbers(self) -> tuple[int, ...]:
        return self.read - self.reclaimed, self.reclaimed, self.acked, self.retried, self.dead, self.missing

    def mark(self) -> tuple[int, ...]:
        """Return where the counters stand, for a report."""
        return self._numbers()

    def report_since(self, mark: tuple[int, ...]) -> PassReport:
        """Return what was counted since the mark."""
        return PassReport(*(now - then for now, then in zip(self._numbers(), mark, strict=True)))
