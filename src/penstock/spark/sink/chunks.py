"""Rows on their way to one stream, cut into chunks that are sent at once."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.sink.entries import Packed


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
        """The packed entries, one behind the other."""
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
        """Cut behind so many rows."""
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
