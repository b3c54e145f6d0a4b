"""Where a pipeline keeps how far it has come, and what that says to somebody who asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError
from penstock.spark.hadoop_settings import default_store
from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.driver import Word, last_word
from penstock.spark.pipeline.files import joined, local_path
from penstock.spark.pipeline.progress import Progress
from penstock.spark.reading.catalogue import look
from penstock.spark.reading.offsets import Offset, Offsets, Position, lag
from penstock.spark.reading.offsets import Progress as StreamProgress

_NOTE = "progress.json"


@dataclass(frozen=True)
class Places:
    """The folders below a checkpoint."""

    checkpoint: str

    @property
    def spark(self) -> str:
        """Spark's own checkpoint."""
        return joined(self.checkpoint, "spark")

    @property
    def staging(self) -> str:
        """The batches that are not in all sinks yet."""
        return joined(self.checkpoint, "staging")

    def local(self) -> Path | None:
        """The checkpoint on the disk of this machine, if it is there."""
        return local_path(self.checkpoint)

    def note(self, progress: Progress) -> None:
        """Keep the last progress for `status`; elsewhere than on a local disk there is none."""
        folder = self.local()
        if folder is None:
            return
        fresh = folder / f"{_NOTE}.new"
        fresh.write_text(json.dumps(progress.as_dict()), encoding="utf-8")
        fresh.replace(folder / _NOTE)


@dataclass(frozen=True)
class Status:
    """How far a pipeline has come: what Spark's checkpoint says, and what Redis says now."""

    name: str
    committed_batch: int | None
    streams: dict[str, dict[str, Any]]
    last: dict[str, Any] | None
    driver: Word | None = None

    @property
    def lag(self) -> int | None:
        """How many entries it has yet to read; None if that cannot be told."""
        counts = [stream["lag"] for stream in self.streams.values()]
        return None if None in counts else sum(counts)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name, "committed_batch": self.committed_batch, "lag": self.lag, "streams": self.streams,
            "last": self.last, "driver": None if self.driver is None else vars(self.driver),
        }  # fmt: skip


def status(pipeline: Pipeline) -> Status:
    """Return how far a pipeline has come, without Spark; raise ConfigurationError if its checkpoint is elsewhere."""
    folder = Places(pipeline.checkpoint).local()
    if folder is None or (not folder.exists() and _is_elsewhere(pipeline)):
        raise ConfigurationError(
            f"checkpoint {pipeline.checkpoint} is not on a disk of this machine: look at the consumer group of the "
            "pipeline instead (source.group)"
        )
    batch = _newest(folder / "spark" / "commits")
    end = _offset(folder / "spark" / "offsets" / str(batch)) if batch is not None else Offsets({}).dump()
    options = pipeline.source.parsed()
    client = options.link.client()
    states = look(client, options.stream_names(client))
    ends = {name: Position(state.last_id, state.added) for name, state in states.items() if state is not None}
    latest = Offsets({name: StreamProgress(position, position) for name, position in ends.items()}).dump()
    behind = lag(latest, end)
    at = Offsets.load(end).positions()
    streams = {
        name: {"at": at[name].id if name in at else None, "newest": ends[name].id, "lag": behind.get(name)}
        for name in ends
    }
    note = folder / _NOTE
    last = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    return Status(pipeline.name, batch, streams, last, last_word(folder))


def _is_elsewhere(pipeline: Pipeline) -> bool:
    return not pipeline.checkpoint.startswith("file:") and default_store(pipeline.spark) is not None


def _newest(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=None)


def _offset(file: Path) -> Offset:
    # Spark writes a line with its version, one with its own settings, and one for each source.
    found: Offset = json.loads(file.read_text(encoding="utf-8").splitlines()[2])
    return found
