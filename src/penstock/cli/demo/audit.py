"""Counts, at the end of the demo, what became of every order: entry by entry, from Redis, not from a counter."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from penstock import DeadLetters, StreamClient
from penstock.cli.demo.orders import GROUP, JOURNAL, STREAM

_PAGE = 1_000


@dataclass(frozen=True)
class Kill:
    """The death of a worker, and the entries that were pending with it."""

    worker: str
    at_s: float
    held: frozenset[str]


@dataclass(frozen=True)
class HandlerRun:
    """One finished run of a handler, as the journal has it."""

    worker: str
    at_s: float


@dataclass
class Ledger:
    """What Redis holds when the demo is over, by entry id."""

    stored: set[str] = field(default_factory=set)
    runs: dict[str, list[HandlerRun]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[str, str] = field(default_factory=dict)  # with the reason
    records: int = 0  # of dead letters
    queued: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Balance:
    """Where the published orders are: each must be in one place."""

    published: int
    acknowledged: int
    dead_lettered: int
    queued: int
    lost: int  # published, and in none of these places
    doubled: int  # in two of them, or in the stream twice

    @property
    def holds(self) -> bool:
        """Whether every order is in exactly one place."""
        total = self.acknowledged + self.dead_lettered + self.queued
        return self.published == total and not self.lost and not self.doubled


async def read_ledger(client: StreamClient) -> Ledger:
    """Read the streams and the pending list from end to end."""
    books = Ledger()
    async for entry_id, _ in _entries(client, STREAM):
        books.stored.add(entry_id)
    async for entry_id, fields in _entries(client, JOURNAL):
        line = json.loads(fields[b"data"])
        books.runs[line["entry"]].append(HandlerRun(line["worker"], _seconds(entry_id)))
    for letter in await DeadLetters(client, STREAM).list(count=len(books.stored) + 1):
        books.dead[letter.source_id] = letter.reason
        books.records += 1
    books.queued = {entry_id async for entry_id in pending(client)}
    books.queued |= {entry_id async for entry_id, _ in _entries(client, STREAM, await _last_delivered(client))}
    return books


def balance(published: Collection[str], books: Ledger) -> Balance:
    """Compare the ids that the producers received with what Redis holds."""
    announced, dead = set(published), set(books.dead)
    handled = set(books.runs) - books.queued
    lost = announced - books.stored | announced - handled - dead - books.queued
    twice = handled & dead | dead & books.queued
    return Balance(
        published=len(published),
        acknowledged=len(handled),
        dead_lettered=books.records,
        queued=len(books.queued),
        lost=len(lost),
        doubled=len(twice) + len(books.stored - announced),
    )


def duplicates(books: Ledger) -> int:
    """Return how often a handler finished an order beyond once."""
    return sum(len(runs) - 1 for runs in books.runs.values())


def duplicates_of(worker: str, books: Ledger) -> int:
    """Return how many of these repeat a run of the worker: it had finished, but died before it could say so."""
    return sum(len(runs) - 1 for runs in books.runs.values() if runs[0].worker == worker)


def recovery(kill: Kill, books: Ledger) -> tuple[int, float]:
    """Return how many orders of the dead worker others handled, and the seconds from its death to the last of them."""
    again = [
        run.at_s
        for entry_id in kill.held
        for run in books.runs.get(entry_id, ())
        if run.worker != kill.worker and run.at_s >= kill.at_s
    ]
    return len(again), max(again, default=kill.at_s) - kill.at_s


def seconds_of_work(books: Ledger) -> float:
    """Return the time from the first line of the journal to the last."""
    times = [run.at_s for runs in books.runs.values() for run in runs]
    return max(times) - min(times) if times else 0.0


def reasons(books: Ledger) -> dict[str, int]:
    """Return the number of dead letters by reason."""
    return dict(Counter(books.dead.values()).most_common())


async def pending(client: StreamClient, consumer: str | None = None) -> AsyncIterator[str]:
    """Iterate over the ids that are pending in the group, or with one consumer."""
    start = "-"
    while True:
        owner = () if consumer is None else (consumer,)
        rows = await client.call(STREAM, "XPENDING", STREAM, GROUP, start, "+", _PAGE, *owner)
        for row in rows:
            yield row[0].decode()
        if len(rows) < _PAGE:
            return
        start = f"({rows[-1][0].decode()}"


async def _entries(
    client: StreamClient, stream: str, start: str = "-"
) -> AsyncIterator[tuple[str, dict[bytes, bytes]]]:
    while True:
        rows = await client.call(stream, "XRANGE", stream, start, "+", "COUNT", _PAGE)
        for entry_id, fields in rows:
            yield entry_id.decode(), dict(zip(fields[::2], fields[1::2], strict=True))
        if len(rows) < _PAGE:
            return
        start = f"({rows[-1][0].decode()}"


async def _last_delivered(client: StreamClient) -> str:
    for info in await client.call(STREAM, "XINFO", "GROUPS", STREAM):
        found = dict(zip(info[::2], info[1::2], strict=True))
        if found[b"name"].decode() == GROUP:
            return f"({found[b'last-delivered-id'].decode()}"
    return "-"


def _seconds(entry_id: str) -> float:
    return int(entry_id.partition("-")[0]) / 1000
