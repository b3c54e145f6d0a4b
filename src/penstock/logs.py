"""Log records that every handler can write, whatever an error of a user's code says of itself."""

from __future__ import annotations

import logging
import traceback

from penstock.errors import name_of, text_of

_MOST_BYTES = 65_536
_PARTS = ("balancer", "queue", "shutdown", "spark", "streams", "tasks")


class _Writable(logging.Filter):
    """Spells a traceback out here if no handler should: it holds what UTF-8 cannot, cannot be shown, or is endless.

    The error itself stays in the record, for handlers that want it and not its text.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with a text for its traceback if need be."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.exc_text is None and not _is_writable(error):
            frames = "".join(traceback.format_tb(error.__traceback__, limit=-50))
            text = f"Traceback (most recent call last):\n{frames}{name_of(error)}: {text_of(error)}"
            record.exc_text = text.encode(errors="replace").decode()
        return True


def _is_writable(error: BaseException) -> bool:
    try:
        return len("".join(traceback.format_exception(error)).encode()) <= _MOST_BYTES
    except BaseException:  # formatting calls code of the user's
        return False


_WRITABLE = _Writable()


def install() -> None:
    """Have the loggers of this library write what every handler can take; a second call changes nothing."""
    for part in _PARTS:
        logging.getLogger(f"penstock.{part}").addFilter(_WRITABLE)
