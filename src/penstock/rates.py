"""How many things happen per second, over a sliding window."""

from __future__ import annotations

import threading
from collections import deque

from penstock.clock import Clock, SystemClock

WINDOW_S = 60.0
_BUCKET_S = 0.1
_LEAST_SPAN_S = 1.0


class RateTracker:
    """Counts events and tells their rate over the last 60 seconds.

    Guarantees: at most some 600 buckets are kept whatever is recorded; `record` takes constant time; both
    methods may be called from any thread. Events within 100 ms share a bucket, so the far edge of the window
    is exact to 100 ms.
    """

    def __init__(self, clock: Clock | None = None, window_s: float = WINDOW_S) -> None:
        self._now = (clock or SystemClock()).monotonic
        self._window_s = window_s
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
            self._forget_before(now - self._window_s)
            total = self._closed_total + self._open_count
            if not total:
                return 0.0
            first = self._closed[0][0] if self._closed else self._opened_at
        return total / max(now - first, _LEAST_SPAN_S)

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
            self._forget_before(now - self._window_s)

    def _forget_before(self, horizon: float) -> None:
        while self._closed and self._closed[0][0] < horizon:
            self._closed_total -= self._closed.popleft()[1]
        if self._opened_at < horizon:
            self._open_count = 0
