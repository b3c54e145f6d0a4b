"""What Spark's Java prints while it starts and ends: warnings that say nothing of the command."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2
_STARTED, _FAILED = b"\0penstock: Spark has started\0", b"\0penstock: Spark has not started\0"
_MARK = re.compile(b"(?s).*?(?:(%b)|%b)" % (_STARTED, _FAILED))
_ENDED = b"\0penstock: Spark is being ended\0"
_PATIENCE_S = 2.0
# Python workers print this when Java closes their connection: their tasks are over, or Java logs the reason. Several
# may print at the same time, a line at a time.
_OF_WORKERS = (
    rb"(?:Traceback \(most recent call last\):\n|  File \"[^\n]*/pyspark/daemon\.py\"[^\n]*\n(?:    [^\n]*\n)*"
    rb"|BrokenPipeError: [^\n]*\n)"
)
_HUNG_UP = re.compile(_OF_WORKERS + rb"*BrokenPipeError: [^\n]*\n")
_UNFINISHED = re.compile(_OF_WORKERS + rb"*[^\n]*\Z")
_writing: list[int] = []  # the pipe, where what Java prints passes through one


@contextmanager
def silent_start() -> Iterator[None]:
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
        _writing[:] = [writing]
        relay.is_past_start.wait(_PATIENCE_S)


def silent_end() -> None:
    """Drop what Java prints from now on, and the Python workers that it starts: they may mind that Spark ends."""
    for writing in _writing:
        os.write(writing, _ENDED)
    _writing.clear()


class _Relay(threading.Thread):
    """Passes on what comes through a pipe between start and end, and what came before if the start has failed."""

    def __init__(self, reading: int, out: int) -> None:
        super().__init__(name="penstock output of Java", daemon=True)
        self._reading, self._out = reading, out
        self.is_past_start = threading.Event()

    def run(self) -> None:
        """Read until this process ends."""
        held = b""
        while chunk := os.read(self._reading, 1 << 16):
            held += chunk
            if not self.is_past_start.is_set():
                found = _MARK.match(held)
                if found is None:
                    continue
                held = held[found.end() :] if found[1] else held.replace(_FAILED, b"")
                self.is_past_start.set()
            visible, end, _ = held.partition(_ENDED)
            if end:
                self._pass_on(visible)
                break
            unfinished = _UNFINISHED.search(held)
            assert unfinished is not None  # it may be empty
            self._pass_on(held[: unfinished.start()])
            held = unfinished[0]
        else:
            self._pass_on(held)
        while os.read(self._reading, 1 << 16):
            pass  # Java must not wait for us

    def _pass_on(self, text: bytes) -> None:
        with suppress(OSError):  # nobody listens any more
            os.write(self._out, _HUNG_UP.sub(b"", text))
