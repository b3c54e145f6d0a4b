"""Rows on their way to one stream, cut into chunks that are sent at once, and the two ways to write a chunk.

These are bare XADDs, or a script that notes how far the partition has come.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError, ServerError
from penstock.keys import StreamKeys
from penstock.redis.blocking import Reply
from penstock.redis.scripts import script
from penstock.spark.sink.entries import Packed, commands, counted
from penstock.spark.sink.identity import Identity, ReplayDiffers, WriteLost, fenced
from penstock.spark.sink.options import SinkOptions

ASKING = b"*1\r\n$6\r\nASKING\r\n"
Spell: TypeAlias = Callable[[str], StreamKeys]


@dataclass
class Chunk:
    """Consecutive rows of a partition for one stream: `first` = how many went before, `before` = their checksum."""

    stream: str
    first: int
    before: int
    lines: Any
    arguments: Any  # of each row: a number if all have the same, else an array

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.lines)

    @cached_property
    def body(self) -> memoryview:
        """The packed entries, one after the other."""
        return _bytes(self.lines)

    @cached_property
    def after(self) -> int:
        """The checksum of all rows up to its end."""
        return zlib.crc32(self.body, self.before)

    @property
    def argument_count(self) -> int:
        """How many arguments the entries are."""
        if isinstance(self.arguments, int):
            return self.arguments * self.rows
        return int(pc.sum(self.arguments).as_py())

    def split(self, rows: int) -> tuple[Chunk, Chunk]:
        """Cut after this number of rows."""
        few, more = (self.arguments,) * 2 if isinstance(self.arguments, int) else _cut(self.arguments, rows)
        head, tail = _cut(self.lines, rows)
        left = Chunk(self.stream, self.first, self.before, head, few)
        return left, Chunk(self.stream, self.first + rows, left.after, tail, more)


@dataclass
class WaitingRows:
    """What waits for one stream; `sent` and `checksum` are of the rows that have left."""

    stream: str
    sent: int = 0
    checksum: int = 0
    rows: int = 0
    _waiting: list[Packed] = field(default_factory=list)

    def add(self, packed: Packed) -> None:
        """Take rows in."""
        self._waiting.append(packed)
        self.rows += len(packed.lines)

    def take(self, size: int, *, is_last: bool = False, is_checked: bool) -> Iterator[Chunk]:
        """Hand out chunks of a size, and the rest as well if it is the last call."""
        if self.rows < size and not (is_last and self.rows):
            return
        waiting = self._waiting
        lines = _together([packed.lines for packed in waiting])
        numbers = [packed.arguments for packed in waiting]
        first = numbers[0]
        is_same = isinstance(first, int) and all(isinstance(n, int) and n == first for n in numbers)
        arguments: Any = first if is_same else _together([_spread(packed) for packed in waiting])
        start = 0
        while start + size <= len(lines) or (is_last and start < len(lines)):
            of_part = arguments if is_same else arguments.slice(start, size)
            chunk = Chunk(self.stream, self.sent, self.checksum, lines.slice(start, size), of_part)
            start += chunk.rows
            self.sent += chunk.rows
            if is_checked:
                self.checksum = chunk.after
            yield chunk
        rest = Packed(lines.slice(start), arguments if is_same else arguments.slice(start), None)
        self._waiting, self.rows = ([rest] if len(rest.lines) else []), len(rest.lines)


def _together(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _spread(packed: Packed) -> Any:
    if isinstance(packed.arguments, int):
        return pa.array([packed.arguments] * len(packed.lines), pa.int64())
    return packed.arguments


def _cut(array: Any, rows: int) -> tuple[Any, Any]:
    return array.slice(0, rows), array.slice(rows)


def _bytes(lines: Any) -> memoryview:
    _, offsets, values = lines.buffers()
    if values is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("b").cast("i")
    return memoryview(values)[places[lines.offset] : places[lines.offset + len(lines)]]


@dataclass(frozen=True)
class Settled:
    """How many rows of a chunk, from its start, are in the stream; with a checksum if that must be compared."""

    rows: int
    is_new: bool = True
    dropped: int = 0
    checksum: int | None = None


@dataclass(frozen=True)
class Room:
    """Nothing was written: there is room for this number of rows only."""

    rows: int


Outcome: TypeAlias = Settled | Room | PenstockError


class WriteProtocol(Protocol):
    """How chunks are written, and what the replies mean."""

    is_bare: bool
    is_checked: bool

    def wrap(self, packed: Packed, stream: str) -> Packed:
        """Make of entries what is sent for each."""

    def pack(self, chunk: Chunk, *, is_asking: bool = False, is_known: bool = True) -> bytes:
        """Return the bytes to send; asking = to a server that takes over the slot; known = it has the script."""

    def replies(self, chunk: Chunk) -> int:
        """Return how many replies will come."""

    def outcome(self, chunk: Chunk, replies: list[Reply]) -> Outcome:
        """Return what the replies mean; an error is returned."""


class PlainXadd:
    """One XADD per row. A chunk that is sent again is written again, from the first row that was not confirmed."""

    is_bare = False
    is_checked = False

    def __init__(self, spell: Spell) -> None:
        self._spell = spell

    def wrap(self, packed: Packed, stream: str) -> Packed:
        """Make commands of entries."""
        return commands(packed, self._spell(stream).stream)

    def pack(self, chunk: Chunk, *, is_asking: bool = False, is_known: bool = True) -> bytes:  # noqa: ARG002
        """Return the commands; ASKING counts for one command only."""
        return b"".join([ASKING + line for line in chunk.lines.to_pylist()]) if is_asking else bytes(chunk.body)

    def replies(self, chunk: Chunk) -> int:
        """Return one for each row."""
        return chunk.rows

    def outcome(self, chunk: Chunk, replies: list[Reply]) -> Outcome:
        """Return how many rows are in, up to the first that is not."""
        for row, reply in enumerate(replies):
            if isinstance(reply, PenstockError):
                return Settled(row) if row else reply
        return Settled(chunk.rows)


class IdempotentScript:
    """The script `spark/write`. A chunk that is sent again is recognised."""

    is_checked = True

    def __init__(self, spell: Spell, identity: Identity, epoch: str, options: SinkOptions, *, is_bare: bool) -> None:
        self._spell, self._identity, self._epoch = spell, identity, epoch
        self.is_bare = is_bare
        self._script = script("spark/write")
        self._policy = "drop_oldest" if options.on_full == "drop_oldest" else "reject"
        self._max_len, self._ttl_s = options.max_len, options.remember_s
        if options.semantics == "at-least-once":
            self._ttl_s = int(options.retry_timeout_s + options.block_timeout_s) * 2 + 60

    def wrap(self, packed: Packed, stream: str) -> Packed:  # noqa: ARG002
        """Put counts before the fields, unless there is but one."""
        return packed if self.is_bare else counted(packed)

    def pack(self, chunk: Chunk, *, is_asking: bool = False, is_known: bool = True) -> bytes:
        """Return the call of the script."""
        keys, identity = self._spell(chunk.stream), self._identity
        head = (
            *(("EVALSHA", self._script.sha) if is_known else ("EVAL", self._script.source)),
            2, keys.stream, keys.spark(identity.query),
            identity.partition, self._epoch, identity.batch, chunk.first, chunk.before, chunk.after,
            self._ttl_s, self._max_len, self._policy, chunk.rows, "plain" if self.is_bare else "full",
        )  # fmt: skip
        words = [str(word).encode() for word in head]
        packed = [ASKING] if is_asking else []
        packed.append(b"*%d\r\n" % (len(words) + chunk.argument_count))
        packed += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        return b"".join([*packed, chunk.body])

    def replies(self, chunk: Chunk) -> int:  # noqa: ARG002
        """Return one."""
        return 1

    def outcome(self, chunk: Chunk, replies: list[Reply]) -> Outcome:
        """Return what the script says."""
        reply = replies[0]
        if isinstance(reply, PenstockError):
            return reply
        kind, *numbers = reply.decode().split(" ")
        match kind:
            case "added":
                outcome: Outcome = Settled(chunk.rows, dropped=int(numbers[0]))
            case "had":
                outcome = Settled(chunk.rows, is_new=False)
            case "at":
                outcome = Settled(int(numbers[0]) - chunk.first, is_new=False, checksum=int(numbers[1]))
            case "room":
                outcome = Room(int(numbers[0]))
            case "fenced":
                outcome = fenced(self._identity, chunk.stream)
            case "differs":
                outcome = self.differs(chunk)
            case "gap":
                outcome = self._lost(chunk, *numbers)
            case _:
                outcome = ServerError(f"the script spark/write answered {reply!r}")
        return outcome

    def differs(self, chunk: Chunk) -> ReplayDiffers:
        """Return the error for rows that are not those of an earlier attempt."""
        return ReplayDiffers(
            f"partition {self._identity.partition} of batch {self._identity.batch} was partly written to stream "
            f"{chunk.stream!r} before, and now has other rows, or another order, within the first "
            f"{chunk.first + chunk.rows:,}. Exactly-once needs the same rows in the same order: sort within "
            "partitions after a shuffle, and do not use random values or the current time; or set "
            "semantics=at-least-once"
        )

    def _lost(self, chunk: Chunk, batch: str, rows: str) -> WriteLost:
        return WriteLost(
            f"stream {chunk.stream!r}: the server confirmed {chunk.first:,} rows of partition "
            f"{self._identity.partition} of batch {self._identity.batch}, but now knows of {rows} (batch "
            f"{batch}); it restarted or failed over and lost its latest data. The partition must be written "
            "again from its start, as Spark does when it repeats the task"
        )
