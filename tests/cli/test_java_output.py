"""What Java prints reaches the terminal between its start and its end, but for what says nothing of the command."""

from __future__ import annotations

import os

import pytest

from penstock.cli.java_output import _ENDED, _FAILED, _STARTED, _Relay

TRACEBACK = """\
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
OF_A_USER = """\
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
  File "/shop/handlers.py", line 3, in handle
OSError: [Errno 5] Input/output error
"""


class Relayed:
    """Java's side of a relay, and the terminal behind it."""

    def __init__(self) -> None:
        reading, self._java = os.pipe()
        self._terminal, out = os.pipe()
        self._out = out
        self._relay = _Relay(reading, out)
        self._relay.start()

    def say(self, text: str | bytes) -> None:
        os.write(self._java, text.encode() if isinstance(text, str) else text)

    def end(self) -> str:
        """Closes Java's side; returns all that came."""
        os.close(self._java)
        self._relay.join(60.0)
        os.close(self._out)
        with os.fdopen(self._terminal, encoding="utf-8") as terminal:
            return terminal.read()


@pytest.fixture
def relayed() -> Relayed:
    return Relayed()


def test_what_is_said_before_the_start_and_after_the_end_is_dropped(relayed: Relayed) -> None:
    relayed.say("WARNING: incubator modules\n")
    relayed.say(_STARTED)
    relayed.say("ERROR Executor: lost\n")
    relayed.say("no end of line")
    relayed.say(_ENDED)
    relayed.say("ERROR Utils: ended\n")
    assert relayed.end() == "ERROR Executor: lost\nno end of line"


def test_a_start_that_fails_shows_all_of_it(relayed: Relayed) -> None:
    relayed.say("Error: no such master\n")
    relayed.say(_FAILED)
    assert relayed.end() == "Error: no such master\n"


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_python_workers_whose_java_has_hung_up_are_not_heard_and_all_else_is(relayed: Relayed, size: int) -> None:
    relayed.say(_STARTED)
    together = "".join(line * 2 for line in TRACEBACK.splitlines(keepends=True))
    said = f"first\n{TRACEBACK}{OF_A_USER}{together}{TRACEBACK}between\n{TRACEBACK}Traceback (most recent\nlast"
    for start in range(0, len(said), size):
        relayed.say(said[start : start + size])
    assert relayed.end() == f"first\n{OF_A_USER}between\nTraceback (most recent\nlast"
