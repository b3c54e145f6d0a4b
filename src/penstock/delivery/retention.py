"""Counts what lies in a stream, and trims what nobody needs: in small steps, so that the server is never held up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import ids
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

_STEP = 2_000  # entries per script call; of large ones the script counts fewer
_MOST_STEPS = 256
_SHORT = 10_000  # so many needed entries are counted gladly; a longer backlog is left alone
_ALL = 1 << 53


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries of a range."""

    count: int
    first: str  # id of the first of them, or ''
    length: int  # of the whole stream
    now_ms: int
    is_all: bool  # the range has ended; else there are more


@dataclass(frozen=True, slots=True)
class _Step:
    count: int
    first: str
    further: str  # where to go on; '' = the range has ended
    length: int
    now_ms: int


async def _count_step(client: StreamClient, stream: str, start: str, end: str, most: int = _STEP) -> _Step:
    reply = await client.run("streams/count_range", [stream], [start, end, most], Repeat.READ)
    counted, first, further, length, now_ms = reply
    return _Step(int(counted), first.decode(), further.decode(), int(length), int(now_ms))


async def count_range(
    client: StreamClient, stream: str, start: str, end: str, most: int | None = None, steps: int | None = None
) -> Counted:
    """Count the entries of a range, up to `most` of them, with so many steps."""
    total, first, taken = 0, "", 0
    while True:
        taken += 1
        step = await _count_step(client, stream, start, end, _STEP if most is None else min(_STEP, most - total))
        total, first = total + step.count, first or step.first
        if not step.further or total == most or taken == steps:
            return Counted(total, first, step.length, step.now_ms, not step.further)
        start = step.further


async def count_after(client: StreamClient, stream: str, last_delivered: str, most: int | None = None) -> Counted:
    """Count the entries behind an id, up to `most`, as long as that does not keep the server busy.

    Without `most` they are counted from both ends in turn: where finished entries are trimmed, what lies before the id
    is the shorter part.
    """
    if last_delivered == ids.LAST:
        return await count_range(client, stream, ids.LAST, ids.ZERO)  # there is no id behind it to begin with
    start, before = ids.after(last_delivered), "-"
    if most is not None:
        return await count_range(client, stream, start, "+", most, _MOST_STEPS)
    total, first, counted, steps = 0, "", 0, 0
    while True:
        behind = await _count_step(client, stream, start, "+")
        total, first, start = total + behind.count, first or behind.first, behind.further
        steps += 2
        if not start or steps > _MOST_STEPS:
            return Counted(total, first, behind.length, behind.now_ms, not start)
        ahead = await _count_step(client, stream, before, last_delivered)
        counted, before = counted + ahead.count, ahead.further
        if not before:
            return Counted(ahead.length - counted, first, ahead.length, ahead.now_ms, True)


async def trim_finished(client: StreamClient, stream: str, keep: int) -> int:
    """Trim what every group is done with, except for the newest `keep` of it; return how many entries went."""
    trimmed, is_all = 0, False
    while not is_all:
        excess, is_all = await _excess(client, stream, keep)
        while excess > 0:
            step = int(await client.run("streams/trim", [stream], [excess], Repeat.ONCE))
            if not step:
                return trimmed
            trimmed += step
            excess -= step
    return trimmed


async def _excess(client: StreamClient, stream: str, keep: int) -> tuple[int, bool]:
    # How many finished entries are too many, and whether that is all of them: a long history is counted in parts.
    if keep == 0:
        return _ALL, True
    if await client.call(stream, "XLEN", stream) <= keep:
        return 0, True
    needed = await count_range(client, stream, "needed", "+", _SHORT)
    if needed.is_all:
        return needed.length - needed.count - keep, True
    # A long backlog: counting what is finished, as far as it matters, is the shorter way.
    finished = await count_range(client, stream, "-", "needed", keep + _SHORT)
    return finished.count - keep, finished.is_all
