"""Functions that pipelines of the tests name: handlers, as the workers run them, and steps."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock import StreamMessage
from penstock.errors import FatalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


async def score(messages: list[StreamMessage]) -> dict[str, dict[str, Any]]:
    """Scores orders; numbers that end in 7 cannot be scored, and those in 8 never could."""
    for message in messages:
        if message.data["n"] % 10 == 7:
            raise ValueError(f"order {message.data['n']} has no price")
        if message.data["n"] % 10 == 8:
            raise FatalError(f"order {message.data['n']} was cancelled")
    return {message.id: {"score": message.data["n"] / 2} for message in messages}


def fickle(messages: list[StreamMessage]) -> list[str]:
    """Fails for other messages each time it is asked."""
    if len(messages) > 1:
        raise ValueError("one at a time")
    if time.monotonic_ns() % 3 == 0:
        raise FatalError("not today")
    return [message.id for message in messages]


def diligent(messages: list[StreamMessage]) -> list[str]:
    """Does all of them."""
    return [message.id for message in messages]


def lazy(messages: list[StreamMessage]) -> list[str]:
    """Never finishes an odd number."""
    return [message.id for message in messages if message.data["n"] % 2 == 0]


def hang_in_c(*, holds_the_lock: bool) -> None:
    """Waits for a mutex that this thread has: no signal ends that."""
    library = ctypes.PyDLL(None) if holds_the_lock else ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


async def stuck(messages: list[StreamMessage]) -> list[str]:
    """Waits for ever at a 3, and at a 5 in C code that no signal interrupts."""
    for message in messages:
        if message.data["n"] == 3:
            await asyncio.Event().wait()
        if message.data["n"] == 5:
            hang_in_c(holds_the_lock=False)
    return [message.id for message in messages]


def deadly(messages: list[StreamMessage]) -> list[str]:
    """Exits at a 3, and at a 5 ends its process as the system does that runs out of memory."""
    for message in messages:
        if message.data["n"] == 3:
            sys.exit("not three")
        if message.data["n"] == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    return [message.id for message in messages]


def doubled(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("n * 2 AS twice")


def broken(rows: DataFrame) -> DataFrame:
    raise KeyError("whatever the user's code raises")


def leaving(rows: DataFrame) -> DataFrame:
    raise SystemExit(3)


def nothing(rows: DataFrame) -> None:
    """Returns no DataFrame."""
