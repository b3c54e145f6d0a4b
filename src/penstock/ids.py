"""Stream ids (`<ms>-<seq>`) and message ids chosen by the producer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

ZERO = "0-0"
_SEQ_MAX = (1 << 64) - 1
_HEX = [f"{number:03x}" for number in range(1 << 12)]


def parse(stream_id: str) -> tuple[int, int]:
    """Split a stream id into its two numbers, which order as the server orders the ids."""
    ms, _, seq = stream_id.partition("-")
    return int(ms), int(seq or 0)


def before(stream_id: str) -> str:
    """Return the greatest possible id that is smaller: a group created there reads `stream_id` first."""
    ms, seq = parse(stream_id)
    if seq:
        return f"{ms}-{seq - 1}"
    return f"{ms - 1}-{_SEQ_MAX}" if ms else ZERO


def after(stream_id: str) -> str:
    """Return the smallest possible id that is greater."""
    ms, seq = parse(stream_id)
    return f"{ms}-{seq + 1}" if seq < _SEQ_MAX else f"{ms + 1}-0"


def message_ids() -> Iterator[str]:
    """Yield message ids for ever: UUIDs of version 7 as 32 hex digits, ascending within one iterator.

    One random draw per millisecond and a counter in place of a draw per id: the ids of one producer differ by
    the counter, those of two producers by 62 random bits, and an id costs a third of a microsecond.
    """
    last_ms, counter, head, tail = -1, 0, "", ""
    while True:
        ms = time.time_ns() // 1_000_000
        if ms > last_ms:
            low = (0b10 << 62) | (int.from_bytes(os.urandom(8), "big") >> 2)
            last_ms, counter, head, tail = ms, 0, f"{ms:012x}7", f"{low:016x}"
        else:
            counter += 1
            if counter > 0xFFF:  # more than 4,096 ids in one millisecond: borrow from the next
                last_ms, counter = last_ms + 1, 0
                head = f"{last_ms:012x}7"
        yield head + _HEX[counter] + tail


class Shared(Iterator[str]):
    """An iterator for threads side by side: a bare generator raises when two of them ask at once."""

    def __init__(self, iterator: Iterator[str]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()

    def __next__(self) -> str:
        with self._lock:
            return next(self._iterator)
