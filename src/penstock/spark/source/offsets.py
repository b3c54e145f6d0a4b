"""Where a query is in its streams: positions, ranges of ids, and how they are written into Spark's checkpoint.

The offset that ends a micro-batch describes the whole batch: for each stream where it begins and ends, and where it is
cut into partitions. So a batch that is run again after a crash is the same batch, whatever happened to the streams and
to "latest" in between, and the very first one too, whose beginning Spark itself does not keep.

    {"v": 1, "s": {"orders": {"id": "1794722835797-56", "n": 1000, "from": "...", "from_n": 0, "cuts": [], "lost": 0}}}

Spark 4.1 asks for an end without saying where the batch begins. Such an end is `open`: what it says of the beginning is
true of the first batch alone, and all others begin where Spark says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from penstock import ids
from penstock.errors import ConfigurationError

VERSION = 1
_OPEN, _FIRST = "open", "first"
Offset: TypeAlias = dict[str, Any]  # as Spark hands it over and keeps it


@dataclass(frozen=True)
class Position:
    """A position in a stream: after the entry `id`, which is the `rank`-th that was ever added (None = unknown)."""

    id: str
    rank: int | None = None


@dataclass(frozen=True)
class IdRange:
    """The entries of a stream after the id `after`, up to and with `upto`."""

    stream: str
    after: str
    upto: str
    rows: int = 0  # by counters or samples
    rank: int | None = None  # of `after`, where it is known

    @property
    def is_empty(self) -> bool:
        """Whether no id can be in it."""
        return ids.parse(self.upto) <= ids.parse(self.after)


@dataclass(frozen=True)
class BatchRange:
    """What one micro-batch takes of one stream."""

    end: Position
    start: Position
    cuts: tuple[str, ...] = ()
    lost: int = 0  # entries that were trimmed before this query read them, since it began

    def pieces(self, stream: str) -> list[IdRange]:
        """Return the range, cut where the batch was planned to be cut."""
        bounds = [self.start.id, *self.cuts, self.end.id]
        ranks = [self.start.rank, *[None] * len(self.cuts)]
        known = self.start.rank is not None and self.end.rank is not None
        total = (self.end.rank or 0) - (self.start.rank or 0) if known else 0
        rows = max(0, total) // (len(self.cuts) + 1)
        made = [
            IdRange(stream, after, upto, rows, rank)
            for after, upto, rank in zip(bounds, bounds[1:], ranks, strict=False)
        ]
        return [piece for piece in made if not piece.is_empty]


@dataclass(frozen=True)
class Offsets:
    """Progress of all streams of a query."""

    streams: Mapping[str, BatchRange] = field(default_factory=dict)

    @classmethod
    def at(cls, positions: Mapping[str, Position]) -> Offsets:
        """Return the progress of a query that is at some positions, and takes nothing."""
        return cls({name: BatchRange(here, here) for name, here in positions.items()})

    @classmethod
    def in_checkpoint(cls, checkpoint: Path, batch: int) -> Offsets:
        """Read what Spark has noted of a batch: a line with its version, one with settings, one for each source.

        Raises: OSError, ValueError or IndexError for what is not there, ConfigurationError for what is not ours.
        """
        lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return cls.load(json.loads(lines[2]))

    def dump(self) -> Offset:
        """Return what goes into the checkpoint."""
        return {"v": VERSION, "s": {name: _dump(self.streams[name]) for name in sorted(self.streams)}}

    @classmethod
    def load(cls, offset: Offset) -> Offsets:
        """Read what came out of a checkpoint; raise ConfigurationError for what no version of this source wrote."""
        version = offset.get("v")
        if version != VERSION:
            raise ConfigurationError(
                f"the checkpoint has offsets of version {version!r}, but this version of Penstock reads version "
                f"{VERSION}: use the version that wrote it, or a new checkpoint"
            )
        try:
            return cls({name: _load(entry) for name, entry in offset["s"].items()})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"the checkpoint has no valid offsets of this source: {error!r}") from error

    def positions(self) -> dict[str, Position]:
        """Return where each stream is read up to."""
        return {name: progress.end for name, progress in self.streams.items()}


def _dump(progress: BatchRange) -> dict[str, Any]:
    found: dict[str, Any] = {"id": progress.end.id, "n": progress.end.rank, "from": progress.start.id}
    found["from_n"] = progress.start.rank
    if progress.cuts:
        found["cuts"] = list(progress.cuts)
    if progress.lost:
        found["lost"] = progress.lost
    return {name: value for name, value in found.items() if value is not None}


def _load(entry: Mapping[str, Any]) -> BatchRange:
    for entry_id in (entry["id"], entry["from"], *entry.get("cuts", ())):
        ids.parse(entry_id)
    start, end = Position(entry["from"], entry.get("from_n")), Position(entry["id"], entry.get("n"))
    return BatchRange(end, start, tuple(entry.get("cuts", ())), entry.get("lost", 0))


def opened(ends: Offsets) -> Offset:
    """Return an end that does not know where its batch begins, unless it is the first."""
    return {**ends.dump(), _OPEN: True}


def first(start: Offsets) -> Offset:
    """Return the beginning of a query, which Spark does not keep."""
    return {**start.dump(), _FIRST: True}


def batch_of(start: Offset, end: Offset) -> Offsets:
    """Return what a batch takes."""
    planned = Offsets.load(end)
    if not end.get(_OPEN) or start.get(_FIRST):
        return planned
    begun = Offsets.load(start).positions()
    new = Position(ids.ZERO, 0)  # a stream that has appeared since
    return Offsets({name: BatchRange(to.end, begun.get(name, new)) for name, to in planned.streams.items()})


def lag(latest: Offset | str | None, end: Offset | str | None) -> dict[str, int | None]:
    """Return how many entries of each stream a query has yet to read; None = unknown to the server.

    Both are in the progress of a query, as `latestOffset` and `endOffset` of its source.
    """
    if not latest or not end:
        return {}
    read = Offsets.load(_offset(end)).positions()
    lags: dict[str, int | None] = {}
    for name, position in Offsets.load(_offset(latest)).positions().items():
        at = read.get(name, Position(ids.ZERO, 0))
        if ids.parse(at.id) >= ids.parse(position.id):
            lags[name] = 0
        else:
            lags[name] = None if position.rank is None or at.rank is None else max(0, position.rank - at.rank)
    return lags


def _offset(offset: Offset | str) -> Offset:
    if isinstance(offset, str):
        found: Offset = json.loads(offset)
        return found
    return offset


def newest_number(folder: Path) -> int | None:
    """Return the largest number that a file of a folder is named, as batches are in a checkpoint; None without one."""
    if not folder.is_dir():
        return None
    names = [file.name for file in folder.iterdir()]
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)


def between(cuts: Sequence[str], start: str, end: str) -> tuple[str, ...]:
    """Return the cuts inside a range, in order and each once."""
    low, high = ids.parse(start), ids.parse(end)
    inside = {cut for cut in cuts if low < ids.parse(cut) < high}
    return tuple(sorted(inside, key=ids.parse))
