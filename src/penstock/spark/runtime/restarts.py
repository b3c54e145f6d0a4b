"""Restarts of a run after failures that pass: of pipelines and of archive runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.runtime.threads import pause

logger = logging.getLogger("penstock.spark")
MOST_RESTARTS = 10
_LONGEST_PAUSE_S = 60.0
_POLL_S = 0.1
_MOST_DOUBLINGS = 6  # of the first pause, a second, to the longest; a number has room for a thousand


def run_with_restarts(
    attempt: Callable[[], None],
    *,
    batches: Callable[[], int],
    most: Callable[[PenstockError], int],
    is_stopping: Callable[[], bool],
    tell: Callable[[PenstockError, float], None] = lambda _error, _pause_s: None,
) -> bool:
    """Run to the end, and start again after a failure and a pause; return False if it was stopped in a pause.

    `most` returns how often in a row a run may fail in this way and be started again; a batch that is committed
    (`batches` counts them) resets the count. `tell` is called before a pause.
    """
    failures = 0
    while True:
        before = batches()
        try:
            attempt()
            return True
        except PenstockError as error:
            failures = 1 if batches() > before else failures + 1
            if is_stopping() or failures > most(error):
                raise
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
            logger.warning("%s. Restarting in %g s (restart %d)", str(error).rstrip(". "), pause_s, failures)
            tell(error, pause_s)
            _pause(pause_s, is_stopping)
        if is_stopping():
            return False


def _pause(seconds: float, is_stopping: Callable[[], bool]) -> None:
    # In small steps: what asks to stop may be a signal handler, which must not touch a lock.
    until = time.monotonic() + seconds
    while not is_stopping() and (left := until - time.monotonic()) > 0:
        pause(min(left, _POLL_S))
