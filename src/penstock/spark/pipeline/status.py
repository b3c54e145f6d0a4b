"""Where a pipeline keeps how far it has come and who runs it, and what that says to somebody who asks.

There is one driver at a time. `<checkpoint>/driver.json` is locked as long as it lives: the system ends the lock with
the process, however that dies. Its text says who holds it or, afterwards, how that ended. A text that says "running"
without a lock is what a driver has left that was killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ConfigurationError, PenstockError, name_of, text_of
from penstock.runtime.threads import pause
from penstock.spark.pipeline.files import joined, local_path
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.runtime.files import is_locked, lock
from penstock.spark.runtime.master import default_store
from penstock.spark.source.catalogue import look
from penstock.spark.source.offsets import Offsets, lag, newest_number

PROGRESS, START = "progress.json", "start.json"
_FILE = "driver.json"
RUNNING, CRASHED, FAILED = "running", "crashed", "failed"
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.1


@dataclass(frozen=True)
class Places:
    """The folders below a checkpoint."""

    checkpoint: str

    @property
    def spark(self) -> str:
        """Spark's own checkpoint."""
        return joined(self.checkpoint, "spark")

    def staging_of(self, step: int, trunk: int) -> str:
        """Return where batches are kept that are not in all sinks yet: those of the trunk, or of a step behind it."""
        return joined(self.checkpoint, "staging" if step == trunk else f"staging-{step}")

    def local(self) -> Path | None:
        """The checkpoint on the disk of this machine, if it is there."""
        return local_path(self.checkpoint)

    def starting(self) -> dict[str, str] | None:
        """Return where a new query begins if the pipeline was reset, as options of the source; None if it was not."""
        folder = self.local()
        file = None if folder is None else folder / START
        if file is None or not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigurationError(f"{file} is damaged ({error}): run `penstock pipeline reset` again") from error

    def note(self, progress: Progress) -> None:
        """Keep the last progress for `status`; elsewhere than on a local disk there is none."""
        folder = self.local()
        if folder is not None:
            write_json(folder / PROGRESS, progress.as_dict())


def write_json(file: Path, content: Any) -> None:
    """Write a small file; readers see all of it or what was there before."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(file)


@dataclass(frozen=True)
class PipelineStatus:
    """How far a pipeline has come: what Spark's checkpoint says, and what Redis says now."""

    name: str
    committed_batch: int | None
    streams: dict[str, dict[str, Any]]
    last: dict[str, Any] | None
    driver: DriverState | None = None

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


def status(pipeline: Pipeline) -> PipelineStatus:
    """Return how far a pipeline has come, without Spark; raise ConfigurationError if its checkpoint is elsewhere."""
    folder = checkpoint_folder(pipeline)
    batch = newest_number(folder / "spark" / "commits")
    read = Offsets() if batch is None else Offsets.in_checkpoint(folder / "spark", batch)
    options = pipeline.source.parsed()
    client = options.link.client()
    states = look(client, options.stream_names(client))
    ends = {name: state.end for name, state in states.items() if state is not None}
    behind = lag(Offsets.at(ends).dump(), read.dump())
    at = read.positions()
    streams = {
        name: {"at": at[name].id if name in at else None, "newest": ends[name].id, "lag": behind.get(name)}
        for name in ends
    }
    last: dict[str, Any] | None = None
    with suppress(OSError, msgspec.MsgspecError, ValueError):  # not there, or what a crash of the machine left of it
        last = msgspec.json.decode((folder / PROGRESS).read_bytes(), type=dict[str, Any])
    return PipelineStatus(pipeline.name, batch, streams, last, last_state(folder))


def checkpoint_folder(pipeline: Pipeline) -> Path:
    """Return the checkpoint on a disk of this machine; raise ConfigurationError if it is elsewhere."""
    folder = Places(pipeline.checkpoint).local()
    if folder is None or (not folder.exists() and _is_elsewhere(pipeline)):
        raise ConfigurationError(
            f"checkpoint {pipeline.checkpoint} is not on a disk of this machine: check the consumer group of "
            "the pipeline instead (source.group)"
        )
    return folder


def _is_elsewhere(pipeline: Pipeline) -> bool:
    return not pipeline.checkpoint.startswith("file:") and default_store(pipeline.spark) is not None


# --- the driver ---


class PipelineBusy(PenstockError):
    """Another driver runs the pipeline on this checkpoint."""


@dataclass(frozen=True)
class DriverState:
    """How a driver is doing. `state` is running, stopped, done or failed; `crashed` is said by others."""

    state: str
    pid: int
    host: str
    time: str
    why: str | None = None

    def __str__(self) -> str:
        who = f"process {self.pid} on {self.host}"
        if self.state == RUNNING:
            return f"running since {self.time}, {who}"
        if self.state == CRASHED:
            return f"crashed: {who}, running since {self.time}, ended without recording why"
        return f"{self.state} at {self.time}" + (f": {self.why}" if self.why else "")


class Driver:
    """The driver of this process, on the checkpoint in a folder of this machine."""

    def __init__(self, folder: Path, spell: Callable[[BaseException], str] = str) -> None:
        """`spell` returns what an error says, as `status` may show it."""
        self._file, self._spell = folder / _FILE, spell
        self._state = DriverState(RUNNING, os.getpid(), socket.gethostname(), _now())

    @contextmanager
    def alone(self) -> Iterator[Driver]:
        """Be the one driver for a while; raise PipelineBusy if there is one already."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)  # Java does not inherit it
        try:
            self._lock(descriptor)
            self._write(descriptor, self._state)
            yield self
            self._write(descriptor, self._state)
        except PipelineBusy:
            raise
        except BaseException as error:
            text = " ".join(text_of(error, self._spell).split()) or name_of(error)
            self._write(descriptor, replace(self._state, state=FAILED, time=_now(), why=text))
            raise
        finally:
            os.close(descriptor)

    def end(self, state: str) -> None:
        """Note how it ended."""
        self._state = replace(self._state, state=state, time=_now())

    def _lock(self, descriptor: int) -> None:
        for _ in range(_LOOKS):  # somebody who looks how it gets on holds the lock for a moment
            if lock(descriptor, self._file, "driver"):
                return
            pause(_BETWEEN_LOOKS_S)
        state = _read(self._file)
        who = "another driver" if state is None else f"process {state.pid} on {state.host}, since {state.time},"
        raise PipelineBusy(
            f"{who} already runs a pipeline with the checkpoint {self._file.parent}: stop it first, or give "
            "this pipeline its own checkpoint"
        )

    @staticmethod
    def _write(descriptor: int, state: DriverState) -> None:
        text = json.dumps(vars(state)).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))


def last_state(folder: Path) -> DriverState | None:
    """Return what is known of the driver on a checkpoint; None if there never was one."""
    file = folder / _FILE
    state = _read(file)
    if state is None or state.state != RUNNING or _is_locked(file):
        return state
    return replace(state, state=CRASHED)


def _read(file: Path) -> DriverState | None:
    with suppress(OSError, ValueError, TypeError):  # not there, or just being written
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return DriverState(**told)
    return None


def _is_locked(file: Path) -> bool:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
