"""Which commands may be sent again after a failure.

| class      | examples                              | not executed for sure | outcome unknown |
|------------|---------------------------------------|-----------------------|-----------------|
| READ       | XPENDING, XRANGE, XINFO, TIME         | again                 | again           |
| IDEMPOTENT | fenced scripts, XGROUP CREATE         | again                 | again           |
| ONCE       | XREADGROUP >, claims, XADD            | again                 | never           |

The outcome is unknown after ConnectionLost and CommandTimeout; it is known to be "not executed" after
ConnectionFailed, ServerBusy, ReadOnlyServer and NotReplicating. Every other error reply is final.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.errors import (
    ConnectionFailed,
    ConnectionLost,
    NotReplicating,
    PenstockError,
    ReadOnlyServer,
    ServerBusy,
)
from penstock.policy import doubling

BUSY = (ServerBusy, ReadOnlyServer, NotReplicating)  # the server cannot execute commands at the moment
_NOT_EXECUTED = (ConnectionFailed, *BUSY)
_RNG = random.Random()
OPERATION_TTL_S = 600  # for which the outcome of an operation is kept: longer than any call retries
RETRYABLE = (ConnectionLost, *_NOT_EXECUTED)  # errors after which a repeatable call is retried


class Repeat(Enum):
    """How often a command may take effect."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"

    def allows(self, error: BaseException) -> bool:
        """Return whether the command may be sent again after the error."""
        if isinstance(error, _NOT_EXECUTED):
            return True
        return self is not Repeat.ONCE and isinstance(error, ConnectionLost)


def pause_s(failures: int, rng: random.Random, first_s: float = 0.02, longest_s: float = 2.0) -> float:
    """Return the delay after a number of failures in a row: doubling, with jitter."""
    return doubling(first_s, failures, longest_s) * rng.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How long one call retries temporary failures.

    `is_given_up` is called before each retry, `on_failure` with each failure and the pause after it.
    """

    budget_s: float
    first_s: float = 0.02
    longest_s: float = 2.0
    waits_for_server: bool = False  # else a server that was never reached raises immediately
    is_given_up: Callable[[], bool] = lambda: False
    on_failure: Callable[[PenstockError, float], None] = lambda _error, _pause_s: None

    def start(self, started_s: float | None = None) -> RetryState:
        """Return the state of one call, which began at `started_s` of time.monotonic(), or now."""
        return RetryState(self, time.monotonic() if started_s is None else started_s)


class RetryState:
    """The failures of one call, against its budget."""

    def __init__(self, rules: RetryBudget, started_s: float) -> None:
        self._rules, self._failures = rules, 0
        self._deadline = started_s + rules.budget_s

    def pause_after(self, error: PenstockError) -> float | None:
        """Return the delay before the next try, or None to stop retrying."""
        self._failures += 1
        rules, now = self._rules, time.monotonic()
        if rules.is_given_up() or now >= self._deadline:
            return None
        wait_s = min(pause_s(self._failures, _RNG, rules.first_s, rules.longest_s), self._deadline - now)
        rules.on_failure(error, wait_s)
        return wait_s
