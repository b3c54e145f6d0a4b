"""What was written to a stream, good and hostile, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from penstock.testing.hostile import HostileEntry

_PAGE = 10_000
_MEMORY, _MEMORY_OF_ONE = 1_000_000, 1_000  # bytes of the keys beside the streams, and for each entry that was written
_FIRST = 20  # unread entries that are looked at: some have megabytes


@dataclass
class History:
    """Every entry of one run, and its fate; `complaints()` is empty when all is well."""

    bad: dict[str, str] = field(default_factory=dict)  # id of the entry -> kind
    good: set[int] = field(default_factory=set)
    handled: Counter[int] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)  # hostile entries that a handler took for messages
    dead: Counter[str] = field(default_factory=Counter)
    left: set[str] = field(default_factory=set)
    raised: list[str] = field(default_factory=list)

    def complaints(self, *, knows_ids: bool = True) -> list[str]:
        """Return a sentence for each promise that was broken; `knows_ids`: handlers say which entry they were given."""
        lost = sorted(self.good - set(self.handled))
        twice = sorted(n for n, runs in self.handled.items() if runs > 1)
        fates = set(self.given) | set(self.dead) | self.left
        vanished = [entry_id for entry_id in self.bad if knows_ids and entry_id not in fates]
        dead_lettered_twice = [entry_id for entry_id, count in self.dead.items() if count > 1]
        told = {
            "raised": self.raised,
            "good messages never handled": lost,
            "good messages handled more than once": twice,
            "never settled": self._kinds(self.left),
            "neither handled nor dead": self._kinds(vanished),
            "dead twice": self._kinds(dead_lettered_twice),
        }
        return [f"{what}: {_brief(found)}" for what, found in told.items() if found]

    def _kinds(self, entry_ids: Iterable[str]) -> list[str]:
        found = Counter(self.bad.get(entry_id, "a good message") for entry_id in entry_ids)
        return [f"{kind} ({count})" for kind, count in found.most_common()]


def _brief(found: list[Any]) -> str:
    shown = ", ".join(map(str, found[:10]))
    return shown + (f" and {len(found) - 10} more" if len(found) > 10 else "")


async def feed(
    raw: redis.Redis,
    stream: str,
    entries: Iterator[HostileEntry],
    history: History,
    count: int,
    add_good: Callable[[int], Awaitable[object]],
) -> None:
    """Add so many hostile entries, with a good message before every third of them and after the last."""
    for number in range(count):
        if number % 3 == 0:
            await _good(history, add_good)
        entry = next(entries)
        entry_id = raw.execute_command("XADD", stream, *entry.words)
        history.bad[entry_id.decode()] = entry.kind
    await _good(history, add_good)


async def _good(history: History, add_good: Callable[[int], Awaitable[object]]) -> None:
    number = len(history.good)
    history.good.add(number)
    await add_good(number)


def unsettled(raw: redis.Redis, stream: str, group: str) -> set[str]:
    """Return the ids that are pending in a group, and the first of those that it was never handed."""
    try:
        groups = {info["name"]: info for info in raw.xinfo_groups(stream)}
    except redis.ResponseError:  # no such stream: nothing was added yet
        return set()
    if group.encode() not in groups:
        return {entry_id.decode() for entry_id, _ in raw.xrange(stream, count=_FIRST)}
    last = groups[group.encode()]["last-delivered-id"].decode()
    unread = raw.execute_command("XRANGE", stream, f"({last}", "+", "COUNT", _FIRST) if last != _LAST else []
    pending = raw.xpending_range(stream, group, "-", "+", _PAGE)
    return {_id_of(row) for row in unread} | {row["message_id"].decode() for row in pending}


_LAST = f"{2**64 - 1}-{2**64 - 1}"


def _id_of(row: Any) -> str:
    return (row[0] if isinstance(row, list | tuple) else row).decode()


def check_memory(raw: redis.Redis, history: History) -> None:
    """Complain about keys beside the streams that have more bytes than the entries explain."""
    sizes = {
        key.decode(errors="replace"): int(raw.memory_usage(key, samples=0) or 0)
        for key in raw.scan_iter(count=1_000)
        if raw.type(key) != b"stream"
    }
    if sum(sizes.values()) > _MEMORY + _MEMORY_OF_ONE * (len(history.good) + len(history.bad)):
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
        history.raised.append(
            f"the keys beside the streams have {sum(sizes.values())} bytes, most of them {largest}"[:300]
        )


def dead_lettered(raw: redis.Redis, stream: str) -> Counter[str]:
    """Return the ids of the entries whose dead letters are in a stream."""
    return Counter(fields[b"dlq_id"].decode() for _, fields in raw.xrange(stream) if b"dlq_id" in fields)
