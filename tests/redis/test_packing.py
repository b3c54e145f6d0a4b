"""Commands are packed whatever arrives meanwhile."""

from __future__ import annotations

import subprocess
import sys

_INTERRUPTED = """
import signal
from penstock.redis.packing import pack

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
command = ("XRANGE", *range(1_000_000, 1_005_000))
interrupted = 0
while interrupted < 200:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while True:
            pack(command)
    except KeyboardInterrupt:
        interrupted += 1
"""


def test_a_signal_while_numbers_are_packed_raises_and_does_not_kill_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
