"""True lag: how many entries a group has not been handed, how old they are, and when it will have caught up.

The server's own number is wrong after trimming and missing after deleting. It is taken where it is certain; else the
entries are counted from both ends of the stream, in steps. A lag that is not counted to an end is an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.delivery.janitor import RangeCount, Unread, age_of, certain_lag
from penstock.errors import PenstockError, ServerError
from penstock.model import Lag
from penstock.ops.catalogue import GroupSnapshot, StreamSnapshot
from penstock.redis.client import StreamClient
from penstock.redis.reading import run_many

_FEW = 200  # entries that are counted from each end first: enough for most groups
_MANY = 2_000  # that one script counts
_TOGETHER = 4  # scripts that count many, in one write: the server serves no other client in between
LIST_STEPS = 20  # scripts beyond the first ones that a list of lags takes: some tens of milliseconds
VERDICT_STEPS = 500  # that a verdict takes, for which a bound is not enough: about a second


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group at one moment: what rates are computed from."""

    at_s: float  # of the server's clock
    added: int  # entries that were ever added, or as many more than at an earlier moment
    lag: int
    is_exact: bool = True  # whether the lag is; a bound may stand still while consumers read
    last_delivered_id: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast entries come and go; `drain_s` is 0 if nothing is unread, None if that will never be so."""

    in_per_s: float
    out_per_s: float
    drain_s: float | None


def rates(before: GroupPosition, after: GroupPosition) -> Rates | None:
    """Return the rates between two moments; None = no time passed, or the stream was recreated.

    With a bound, only a group that has read nothing has known rates.
    """
    passed_s = after.at_s - before.at_s
    added = after.added - before.added
    if passed_s <= 0 or added < 0:
        return None
    in_per_s = added / passed_s
    if before.is_exact and after.is_exact:
        # What came and is not unread went out: the server's count of what was read is wrong after trimming.
        out_per_s = max(0.0, (added - (after.lag - before.lag)) / passed_s)
    elif after.last_delivered_id and after.last_delivered_id == before.last_delivered_id:
        out_per_s = 0.0
    else:
        return None
    return Rates(in_per_s, out_per_s, drain_s(after.lag, in_per_s, out_per_s))


def drain_s(lag: int, in_per_s: float, out_per_s: float) -> float | None:
    """Return after how many seconds nothing will be unread; None = never at these rates."""
    if lag == 0:
        return 0.0
    return lag / (out_per_s - in_per_s) if out_per_s > in_per_s else None


def exact_unread(snapshot: StreamSnapshot, group: GroupSnapshot) -> int | None:
    """Return how many entries are unread where that is certain without counting them."""
    if group.first_unread_id == "":
        return 0
    if group.first_unread_id == snapshot.first_id:
        return snapshot.length
    return certain_lag(snapshot.length, group.entries_read, group.lag)


async def measure(
    client: StreamClient, groups: Sequence[tuple[str, StreamSnapshot, GroupSnapshot]], steps: int = LIST_STEPS
) -> list[Lag]:
    """Return the lags of many groups, each with the key of its stream, in few round trips.

    If the counters are not certain and `steps` do not reach an end of the stream, the lag is an upper bound.
    """
    known = [exact_unread(snapshot, group) for _, snapshot, group in groups]
    counts = {
        place: Unread(key, group.last_delivered_id)
        for place, (key, snapshot, group) in enumerate(groups)
        if not snapshot.has_huge_entries and (known[place] is None or group.first_unread_id == "?")
    }
    await _advance(client, list(counts.values()), _FEW)
    await _finish(client, [count for index, count in counts.items() if known[index] is None], steps)
    return [_lag(snapshot, group, known[index], counts.get(index)) for index, (_, snapshot, group) in enumerate(groups)]


def _lag(snapshot: StreamSnapshot, group: GroupSnapshot, known: int | None, counted: Unread | None) -> Lag:
    if snapshot.has_huge_entries:
        return _uncounted(snapshot, group, known)
    if counted is None:
        return Lag(known or 0, age_of(group.first_unread_id, snapshot.now_ms))
    return counted.lag(known, group.lag, snapshot.now_ms)


def _uncounted(snapshot: StreamSnapshot, group: GroupSnapshot, known: int | None) -> Lag:
    # No entry was looked at: the oldest unread one is younger than the last that was read.
    since_ms = ids.parse(group.last_delivered_id)[0]
    count = known if known is not None else min(snapshot.length, snapshot.length if group.lag is None else group.lag)
    age_s = max(0, snapshot.now_ms - since_ms) / 1000 if count and since_ms else 0.0
    return Lag(count, age_s, is_exact=known is not None)


async def _finish(client: StreamClient, counts: Sequence[Unread], steps: int) -> None:
    left = [count for count in counts if not count.is_exact]
    while left and steps >= 2:
        left.sort(key=lambda count: count.length)  # of short streams more are counted to the end
        left = left[: steps // 2]
        steps -= 2 * len(left)
        for start in range(0, len(left), _TOGETHER):
            await _advance(client, left[start : start + _TOGETHER], _MANY)
        left = [count for count in left if not count.is_exact]


async def _advance(client: StreamClient, counts: Sequence[Unread], most: int) -> None:
    left = [each for each in counts if each.after]
    steps = await _count(client, [(each.key, each.after, "+") for each in left], most)
    for each, step in zip(left, steps, strict=True):
        each.add_behind(step)
    left = [each for each in left if each.after]
    steps = await _count(client, [(each.key, each.before, each.position) for each in left], most)
    for each, step in zip(left, steps, strict=True):
        each.add_ahead(step)


async def _count(client: StreamClient, ranges: Sequence[tuple[str, str, str]], most: int) -> list[RangeCount]:
    replies = await run_many(client, "streams/count_range", [([key], [start, end, most]) for key, start, end in ranges])
    for reply in replies:
        if isinstance(reply, ServerError):  # about the script, such as that it was killed: nothing was counted
            raise reply
    # Any other error: the key is no stream any more.
    return [RangeCount() if isinstance(reply, PenstockError) else RangeCount.of(reply) for reply in replies]


async def added_since(client: StreamClient, streams: Sequence[tuple[str, str]], steps: int) -> list[int | None]:
    """Return how many entries follow an id in each stream, for servers that do not count what is added.

    None = `steps` do not reach an end of the stream.
    """
    counts = [Unread(key, last) for key, last in streams]
    await _advance(client, counts, _FEW)
    await _finish(client, counts, steps)
    return [count.most if count.is_exact else None for count in counts]
