"""Counts what lies in a stream, and trims what nobody needs: in small steps, so that the server is never held up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import ids
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

_COUNT_STEP = 2_000
_TRIM_STEP = 1_000
_SHORT = 10_000  # so many needed entries are counted gladly; a longer backlog is left alone


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries of a range."""

    count: int
    first: str  # id of the first of them, or ''
    length: int  # of the whole stream
    now_ms: int


async def count_range(client: StreamClient, stream: str, start: str, end: str, most: int | None = None) -> Counted:
    """Count the entries of a range, up to `most` of them."""
    total, first = 0, ""
    while True:
        reply = await client.run("survey", [stream], [start, end, _COUNT_STEP], Repeat.READ)
        counted, begin, last, length, now_ms = reply
        first = first or begin.decode()
        total += counted
        if counted < _COUNT_STEP or (most is not None and total >= most):
            return Counted(total, first, length, now_ms)
        start = "(" + last.decode()


async def count_after(client: StreamClient, stream: str, last_delivered: str) -> Counted:
    """Count the entries behind an id."""
    return await count_range(client, stream, f"({last_delivered}" if last_delivered != ids.ZERO else "-", "+")


async def trim_finished(client: StreamClient, stream: str, keep: int) -> int:
    """Trim what every group is done with, except for the newest `keep` of it; return how many entries went."""
    trimmed, is_all = 0, False
    while not is_all:
        excess, is_all = await _excess(client, stream, keep)
        while excess > 0:
            step = int(await client.run("trim", [stream], [_TRIM_STEP, excess], Repeat.ONCE))
            if not step:
                return trimmed
            trimmed += step
            excess -= step
    return trimmed


async def _excess(client: StreamClient, stream: str, keep: int) -> tuple[int, bool]:
    # How many finished entries are too many, and whether that is all of them: a long history is counted in parts.
    if await client.call(stream, "XLEN", stream) <= keep:
        return 0, True
    needed = await count_range(client, stream, "needed", "+", _SHORT)
    if needed.count < _SHORT:
        return needed.length - needed.count - keep, True
    # A long backlog: counting what is finished, as far as it matters, is the shorter way.
    finished = await count_range(client, stream, "-", "needed", keep + _SHORT)
    return finished.count - keep, finished.count < keep + _SHORT
