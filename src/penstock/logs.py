"""Makes log records safe for every handler, whatever the errors of user code contain; logs outages."""

from __future__ import annotations

import logging
import time
import traceback

from penstock.errors import PenstockError, summary_of

_MAX_BYTES = 65_536
_REMINDER_S = 60.0
_PARTS = (
    "balancer", "cli", "dashboard", "dead_letters", "delivery", "events", "ops", "queue", "redis", "results",
    "shutdown", "spark", "streams", "tasks",
)  # fmt: skip


class PrintableError(PenstockError):
    """In a log: an error that no handler could write, or should."""


class _Writable(logging.Filter):
    """Replaces the error of a record if it cannot be encoded as UTF-8, cannot be formatted, or is too long.

    Replaces the error itself, not only its text, because JSON formatters and error trackers format it themselves.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with an error that can be written."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not _is_writable(error):
            record.exc_info = (PrintableError, PrintableError(summary_of(error)), error.__traceback__)
        return True


def _is_writable(error: BaseException) -> bool:
    try:
        str(error)
        return len("".join(traceback.format_exception(error)).encode()) <= _MAX_BYTES
    except BaseException:  # code of the user's
        return False


_WRITABLE = _Writable()


def install() -> None:
    """Make the log records of this library safe for every handler; a second call has no effect."""
    for half in ("penstock", "penstock.sync"):
        for part in _PARTS:
            logging.getLogger(f"{half}.{part}").addFilter(_WRITABLE)


class OutageLog:
    """Logs each error of an outage once a minute, and once that the outage is over.

    During an outage, several activities of a consumer or worker fail and retry at the same time, many times a minute.
    """

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger, self._name = logger, name
        self._began_s = 0.0
        self._failed_s = float("-inf")  # the last time
        self._logged_s: dict[str, float] = {}  # by the text of the error

    def failed(self, error: PenstockError) -> None:
        """Log a temporary error, unless it was logged within the last minute of this outage."""
        text, now_s = str(error), time.monotonic()
        if now_s - self._failed_s > _REMINDER_S:
            self._logged_s.clear()  # of an earlier outage, during which the consumer or worker stopped
        if not self._logged_s:
            self._began_s = now_s
        self._failed_s = now_s
        if now_s - self._logged_s.get(text, float("-inf")) >= _REMINDER_S:
            self._logged_s[text] = now_s
            self._logger.warning("%s: %s; retrying", self._name, text)

    def succeeded(self) -> None:
        """Log that the outage is over, if there was one."""
        if self._logged_s:
            self._logged_s.clear()
            self._logger.warning("%s: works again after %.1f s", self._name, time.monotonic() - self._began_s)
