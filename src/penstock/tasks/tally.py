"""What a worker counts: runs by kind and outcome, and how long they took."""

from __future__ import annotations

import bisect
import threading
import time
from dataclasses import dataclass, field

BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
OUTCOMES = ("ok", "error", "skip", "retry", "snooze", "dead", "refused", "unsaved")


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
        self.exit_reason = ""

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

    def took(self, kind: str, seconds: float) -> None:
        """Take note of how long a run took."""
        tally = self.of(kind)
        with self._lock:
            tally.seconds += seconds
            tally.buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1

    def total(self, outcome: str) -> int:
        """Return how often an outcome was counted, over all kinds."""
        return sum(tally.outcomes[outcome] for tally in list(self.kinds.values()))
