"""Stream ids (`<ms>-<seq>`) and message ids chosen by the producer."""

from __future__ import annotations

import itertools
import os
import secrets
import time
import weakref
from datetime import UTC, datetime
from typing import ClassVar

from penstock.errors import ConfigurationError

ZERO = "0-0"
_SEQ_MAX = (1 << 64) - 1
_MAX_DIGITS = len(str(_SEQ_MAX))
_LAST_MS = 253_402_300_799_000  # in the year 9999
LAST = f"{_SEQ_MAX}-{_SEQ_MAX}"
_HEX = [f"{number:03x}" for number in range(1 << 12)]


def parse(stream_id: str) -> tuple[int, int]:
    """Split a stream id into its two numbers, which order as the server orders the ids.

    Raises ConfigurationError for what the server would not take for an id.
    """
    ms, dash, seq = stream_id.partition("-")
    return _number(ms, stream_id), _number(seq, stream_id) if dash else 0


def _number(digits: str, stream_id: str) -> int:
    # The length first: int() of many digits takes long, and an id may come out of a message.
    if 0 < len(digits) <= _MAX_DIGITS and digits.isascii() and digits.isdigit():
        found = int(digits)
        if found <= _SEQ_MAX:
            return found
    raise ConfigurationError(f"{stream_id[:60]!r} is not a stream id: write it as 1794700800000-0")


def is_id(text: str) -> bool:
    """Return whether a text is a whole stream id; its milliseconds alone may also be a time, or stand for many ids."""
    try:
        parse(text)
    except ConfigurationError:
        return False
    return "-" in text


def moment(ms: int) -> datetime:
    """Return a time in ms since 1970; one that no datetime can hold becomes the last that it can."""
    return datetime.fromtimestamp(min(ms, _LAST_MS) / 1000, UTC)


def before(stream_id: str) -> str:
    """Return the greatest possible id that is smaller: a group created there reads `stream_id` first."""
    ms, seq = parse(stream_id)
    if seq:
        return f"{ms}-{seq - 1}"
    return f"{ms - 1}-{_SEQ_MAX}" if ms else ZERO


def after(stream_id: str) -> str:
    """Return the smallest possible id that is greater; there is none beyond the greatest, which is returned."""
    ms, seq = parse(stream_id)
    if ms == seq == _SEQ_MAX:
        return stream_id
    return f"{ms}-{seq + 1}" if seq < _SEQ_MAX else f"{ms + 1}-0"


class MessageIds:
    """Makes message ids: UUIDs of version 7 as 32 hex digits, for any number of threads.

    A counter in place of a random draw per id: the ids of one maker differ by the counter, those of two makers by 61
    random bits, and an id costs a fifth of a microsecond. Ids of different milliseconds order by time.
    """

    __slots__ = ("__weakref__", "_count", "_low", "_recent")
    _all: ClassVar[weakref.WeakSet[MessageIds]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._count = itertools.count()  # next() of it is atomic
        self._draw()
        MessageIds._all.add(self)

    def _draw(self) -> None:
        self._low = (0b10 << 62) | secrets.randbits(61)
        self._recent = (0, -1, "", "")  # one value, so that threads never see half of a change

    @classmethod
    def forked(cls) -> None:
        """Choose new random bits in a forked process, which would otherwise create the same ids; a fork hook."""
        for maker in list(cls._all):
            maker._draw()  # noqa: SLF001

    def make(self) -> str:
        """Return a new id."""
        number = next(self._count)
        block, ms = number >> 12, time.time_ns() // 1_000_000
        last_ms, last_block, head, tail = self._recent
        if ms != last_ms or block != last_block:
            head, tail = f"{ms:012x}7", f"{self._low + block:016x}"
            self._recent = (ms, block, head, tail)
        return head + _HEX[number & 0xFFF] + tail

    def make_many(self, count: int) -> list[str]:
        """Return new ids, at a third of what they cost one by one."""
        numbers = [next(self._count) for _ in range(count)]
        if not numbers or numbers[0] >> 12 != numbers[-1] >> 12:  # the block ends among them
            return [self.make() for _ in numbers]
        head, tail = f"{time.time_ns() // 1_000_000:012x}7", f"{self._low + (numbers[0] >> 12):016x}"
        return [head + _HEX[number & 0xFFF] + tail for number in numbers]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MessageIds.forked)
