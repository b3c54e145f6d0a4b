"""What Spark's Java prints while it starts: warnings that say nothing of the command, before anything that does."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_STARTED, _FAILED = b"\0penstock: Spark has started\0", b"\0penstock: Spark has not started\0"
_MARK = re.compile(b"(?s).*?(?:(%b)|%b)" % (_STARTED, _FAILED))
_PATIENCE_S = 2.0


@contextmanager
def unheard_start() -> Iterator[None]:
    """Start Java in the body without what it prints until the end of that; a start that fails shows all of it.

    What Java and the Python workers that it starts print later comes through. With -v, so does the rest.
    """
    if logging.getLogger("penstock").isEnabledFor(logging.DEBUG):
        yield
        return
    sys.stderr.flush()
    ours, (reading, writing) = os.dup(_STDERR), os.pipe()
    relay = _Relay(reading, ours)
    relay.start()
    os.dup2(writing, _STDERR)
    mark = _STARTED
    try:
        yield
    except Exception:
        mark = _FAILED
        raise
    finally:
        sys.stderr.flush()
        os.dup2(ours, _STDERR)
        os.write(writing, mark)
        os.close(writing)
        relay.is_past_start.wait(_PATIENCE_S)


class _Relay(threading.Thread):
    """Passes on what comes through a pipe once the start is over, and what came before if that has failed."""

    def __init__(self, reading: int, out: int) -> None:
        super().__init__(name="penstock output of Java", daemon=True)
        self._reading, self._out = reading, out
        self.is_past_start = threading.Event()

    def run(self) -> None:
        """Read until Java has ended."""
        held = b""
        while chunk := os.read(self._reading, 1 << 16):
            held += chunk
            if not self.is_past_start.is_set():
                found = _MARK.match(held)
                if found is None:
                    continue
                held = held[found.end() :] if found[1] else held.replace(_FAILED, b"")
            os.write(self._out, held)
            held = b""
            self.is_past_start.set()
