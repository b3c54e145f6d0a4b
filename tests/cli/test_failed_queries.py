"""What is told of a query that failed."""

from __future__ import annotations

from penstock.cli.spark_session import query_failed

_FULL = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Reason: An exception was raised by the
Python Proxy. Return Message: Traceback (most recent call last):
  File "callbacks.py", line 617, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
OSError: [Errno 28] No space left on device: '/mnt/archive/_staging'

SQLSTATE: XXKST
=== Streaming Query ===
"""


def test_what_python_raised_is_told_not_how_spark_wrapped_it() -> None:
    assert (
        str(query_failed(RuntimeError(_FULL))) == "OSError: [Errno 28] No space left on device: '/mnt/archive/_staging'"
    )
    ours = _FULL.replace("OSError: [Errno 28] No", "penstock.errors.DataLost: no")
    assert str(query_failed(RuntimeError(ours))) == "no space left on device: '/mnt/archive/_staging'"
    assert str(query_failed(RuntimeError("first line\nsecond"))) == "first line"
