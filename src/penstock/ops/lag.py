"""True lag: how many entries a group has not been handed, how old they are, and when it will have caught up.

The server's own number is wrong after trimming and missing after deleting. It is taken where it is certain; else the
entries are counted, from the end of the stream that is nearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.errors import PenstockError
from penstock.model import Lag
from penstock.ops.batches import run_many
from penstock.ops.catalogue import GroupLook, Look
from penstock.redis.client import StreamClient

_FEW = 200  # entries that are counted from each end where many groups are looked at
_MANY = 2_000  # that one script counts


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group at one moment: what rates are computed from."""

    at_s: float  # of the server's clock
    added: int  # entries that were ever added, or as many more than at an earlier moment
    lag: int


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast entries come and go; `drain_s` is 0 if nothing is unread, None if that will never be so."""

    in_per_s: float
    out_per_s: float
    drain_s: float | None


def rates(before: GroupPosition, after: GroupPosition) -> Rates | None:
    """Return the rates between two moments; None = no time lies between them, or the stream began anew."""
    passed_s = after.at_s - before.at_s
    added = after.added - before.added
    if passed_s <= 0 or added < 0:
        return None
    in_per_s = added / passed_s
    # What came and is not unread went out: the server's count of what was read is wrong after trimming.
    out_per_s = max(0.0, (added - (after.lag - before.lag)) / passed_s)
    return Rates(in_per_s, out_per_s, drain_s(after.lag, in_per_s, out_per_s))


def drain_s(lag: int, in_per_s: float, out_per_s: float) -> float | None:
    """Return after how many seconds nothing will be unread; None = never at these rates."""
    if lag == 0:
        return 0.0
    return lag / (out_per_s - in_per_s) if out_per_s > in_per_s else None


def certain(look: Look, group: GroupLook) -> int | None:
    """Return how many entries are unread where that is certain without counting them."""
    if group.first_unread_id == "":
        return 0
    if group.first_unread_id == look.first_id:
        return look.length
    # What was read and what was not are all that was ever added: if all of it is there, the counters missed nothing.
    if group.entries_read is not None and group.lag is not None and group.entries_read + group.lag == look.length:
        return group.lag
    return None


async def measure(client: StreamClient, groups: Sequence[tuple[str, Look, GroupLook]]) -> list[Lag]:
    """Return the lags of many groups, each with the key of its stream, in few round trips.

    Where neither the counters are certain nor an end of the stream is near, the lag is a bound.
    """
    known = [certain(look, group) for _, look, group in groups]
    unknown = [
        place
        for place, (_, look, group) in enumerate(groups)
        if not look.has_huge_entries and (known[place] is None or group.first_unread_id == "?")
    ]
    behind = await _count(client, [(groups[at][0], _after(groups[at][2]), "+") for at in unknown])
    left = [at for at, counted in zip(unknown, behind, strict=True) if not counted.is_all]
    ahead = await _count(client, [(groups[at][0], "-", groups[at][2].last_delivered_id) for at in left])
    counted_behind, counted_ahead = dict(zip(unknown, behind, strict=True)), dict(zip(left, ahead, strict=True))
    found: list[Lag] = []
    for place, (_, look, group) in enumerate(groups):
        if look.has_huge_entries:
            found.append(_unlooked(look, group, known[place]))
            continue
        count, after = known[place], counted_behind.get(place)
        first = group.first_unread_id if after is None else after.first
        age_s = max(0, look.now_ms - ids.parse(first)[0]) / 1000 if first else 0.0
        if after is None:
            found.append(Lag(count or 0, age_s))
        elif after.is_all:
            found.append(Lag(after.count, age_s))
        elif counted_ahead[place].is_all:
            found.append(Lag(counted_ahead[place].length - counted_ahead[place].count, age_s))
        else:
            most = after.length - counted_ahead[place].count
            found.append(Lag(max(after.count, min(most, group.lag or most)), age_s, is_exact=False))
    return found


def _unlooked(look: Look, group: GroupLook, known: int | None) -> Lag:
    # No entry was looked at: the oldest unread one is younger than the last that was read.
    since_ms = ids.parse(group.last_delivered_id)[0]
    count = known if known is not None else min(look.length, look.length if group.lag is None else group.lag)
    age_s = max(0, look.now_ms - since_ms) / 1000 if count and since_ms else 0.0
    return Lag(count, age_s, is_exact=known is not None)


@dataclass(frozen=True, slots=True)
class _Counted:
    count: int
    first: str
    length: int
    is_all: bool


def _after(group: GroupLook) -> str:
    return ids.after(group.last_delivered_id)


async def _count(client: StreamClient, ranges: Sequence[tuple[str, str, str]], most: int = _FEW) -> list[_Counted]:
    replies = await run_many(client, "streams/count_range", [([key], [start, end, most]) for key, start, end in ranges])
    return [
        _Counted(0, "", 0, is_all=True)
        if isinstance(reply, PenstockError)
        else _Counted(int(reply[0]), reply[1].decode(), int(reply[3]), not reply[2])
        for reply in replies
    ]


async def added_since(client: StreamClient, streams: Sequence[tuple[str, str]]) -> list[int]:
    """Return how many entries follow an id in each stream, for servers that do not count what is added.

    No more than some thousands are counted.
    """
    ranges = [(key, ids.after(last), "+") for key, last in streams]
    return [counted.count for counted in await _count(client, ranges, _MANY)]
