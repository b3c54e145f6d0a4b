"""The checkpoint of a pipeline: where its files are, which driver runs it, and the status that `status` reports.

There is one driver at a time. It locks `<checkpoint>/driver.json` while it is alive; the system releases the lock with
the process. The file says which process holds the lock or, afterwards, how it ended. If it says "running" and there is
no lock, the driver was killed.
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
_LOCK_ATTEMPTS, _LOCK_PAUSE_S = 5, 0.1


@dataclass(frozen=True)
class Places:
    """The folders below a checkpoint."""

    checkpoint: str

    @property
    def spark(self) -> str:
        """Spark's own checkpoint."""
        return joined(self.checkpoint, "spark")

    def staging_of(self, step: int, trunk: int) -> str:
        """Return the folder of staged batches: those of the trunk, or of a step after it."""
        return joined(self.checkpoint, "staging" if step == trunk else f"staging-{step}")

    def local(self) -> Path | None:
        """The checkpoint, if it is on a disk of this machine."""
        return local_path(self.checkpoint)

    def starting(self) -> dict[str, str] | None:
        """Return where a new query starts after a reset, as options of the source; None without a reset."""
        folder = self.local()
        file = None if folder is None else folder / START
        if file is None or not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigurationError(f"{file} is damaged ({error}): run `penstock pipeline reset` again") from error

    def note(self, progress: Progress) -> None:
        """Save the last progress for `status`, if the checkpoint is on a local disk."""
        folder = self.local()
        if folder is not None:
            write_json(folder / PROGRESS, progress.as_dict())


def write_json(file: Path, content: Any) -> None:
    """Write a small file in one step: readers see the old or the new content."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(file)


@dataclass(frozen=True)
class PipelineStatus:
    """The progress of a pipeline, from Spark's checkpoint and from Redis."""

    name: str
    committed_batch: int | None
    streams: dict[str, dict[str, Any]]
    last: dict[str, Any] | None
    driver: DriverState | None = None

    @property
    def lag(self) -> int | None:
        """The number of entries left to read; None if unknown."""
        counts = [stream["lag"] for stream in self.streams.values()]
        return None if None in counts else sum(counts)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name, "committed_batch": self.committed_batch, "lag": self.lag, "streams": self.streams,
            "last": self.last, "driver": None if self.driver is None else vars(self.driver),
        }  # fmt: skip


def status(pipeline: Pipeline) -> PipelineStatus:
    """Return the progress of a pipeline, without Spark; raise ConfigurationError if its checkpoint is not local."""
    folder = checkpoint_folder(pipeline, "check the consumer group of the pipeline instead (source.group)")
    batch = newest_number(folder / "spark" / "commits")
    read = Offsets() if batch is None else Offsets.in_checkpoint(folder / "spark", batch)
    options = pipeline.source.parsed()
    client = options.link.client()
    states = look(client, options.stream_names(client))
    ends = {name: state.end for name, state in states.items() if state is not None}
    lags = lag(Offsets.at(ends).dump(), read.dump())
    at = read.positions()
    streams = {
        name: {"at": at[name].id if name in at else None, "newest": ends[name].id, "lag": lags.get(name)}
        for name in ends
    }
    last: dict[str, Any] | None = None
    with suppress(OSError, msgspec.MsgspecError, ValueError):  # it does not exist, or a crash of the machine damaged it
        last = msgspec.json.decode((folder / PROGRESS).read_bytes(), type=dict[str, Any])
    return PipelineStatus(pipeline.name, batch, streams, last, last_state(folder))


def checkpoint_folder(pipeline: Pipeline, hint: str) -> Path:
    """Return the folder of the checkpoint; raise ConfigurationError, with the hint, if it is on no local disk."""
    folder = Places(pipeline.checkpoint).local()
    if folder is None or (not folder.exists() and _is_elsewhere(pipeline)):
        raise ConfigurationError(f"checkpoint {pipeline.checkpoint} is not on a disk of this machine: {hint}")
    return folder


def _is_elsewhere(pipeline: Pipeline) -> bool:
    return not pipeline.checkpoint.startswith("file:") and default_store(pipeline.spark) is not None


# --- the driver ---


class PipelineBusy(PenstockError):
    """Another driver uses this checkpoint."""


@dataclass(frozen=True)
class DriverState:
    """The state of a driver: running, stopped, done, failed or reset; readers may find that it has crashed."""

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
    """This process as the driver of a checkpoint on a disk of this machine."""

    def __init__(self, folder: Path, spell: Callable[[BaseException], str] = str) -> None:
        """`spell` returns the text of an error without secrets, for `status`."""
        self._file, self._spell = folder / _FILE, spell
        self._state = DriverState(RUNNING, os.getpid(), socket.gethostname(), _now())

    @contextmanager
    def alone(self) -> Iterator[Driver]:
        """Be the only driver until the end of the block; raise PipelineBusy if there is another one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)  # not inherited by Java
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
        """Record how it ended."""
        self._state = replace(self._state, state=state, time=_now())

    def _lock(self, descriptor: int) -> None:
        for _ in range(_LOCK_ATTEMPTS):  # `status` holds the lock for a moment
            if lock(descriptor, self._file, "driver"):
                return
            pause(_LOCK_PAUSE_S)
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
    """Return the state of the last driver of a checkpoint; None if there never was one."""
    file = folder / _FILE
    state = _read(file)
    if state is None or state.state != RUNNING or _is_locked(file):
        return state
    return replace(state, state=CRASHED)


def _read(file: Path) -> DriverState | None:
    with suppress(OSError, ValueError, TypeError):  # it does not exist, or is being written
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return DriverState(**found)
    return None


def _is_locked(file: Path) -> bool:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
