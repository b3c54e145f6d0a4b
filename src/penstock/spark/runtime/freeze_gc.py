"""The garbage collector of Python, and what it costs a process that has loaded Spark, pandas and Arrow."""

from __future__ import annotations

import gc
import os

_TIMES = 2  # the second time for what the first task has loaded late
_frozen: dict[int, int] = {}  # times by process: workers are forked


def freeze_gc() -> None:
    """Take everything that the process has loaded out of the sight of the garbage collector; when a task begins.

    PySpark collects all garbage after each task: 50 ms with pandas and pyarrow loaded, most of what a small micro-batch
    costs. And a task that makes an object or more for each row has the collector look through all that is loaded again
    and again: a replay took twice as long.
    """
    pid = os.getpid()
    times = _frozen.get(pid, 0)
    if times < _TIMES:
        _frozen[pid] = times + 1
        gc.freeze()
