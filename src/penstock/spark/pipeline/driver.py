"""The driver that runs a pipeline, as other processes see it: there is one at a time, and it leaves word how it ended.

`<checkpoint>/driver.json` is locked as long as the driver lives: the system ends the lock with the process, however
that dies. Its text says who holds it or, afterwards, how that ended. A text that says "running" without a lock is what
a driver has left that was killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, name_of, text_of
from penstock.runtime.threads import pause
from penstock.spark.file_lock import is_locked, lock

_FILE = "driver.json"
RUNNING, CRASHED, FAILED = "running", "crashed", "failed"
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.1


class PipelineBusy(PenstockError):
    """Another driver runs the pipeline on this checkpoint."""


@dataclass(frozen=True)
class Word:
    """What a driver says of itself. `state` is running, stopped, done or failed; `crashed` is said by others."""

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
            return f"crashed: {who}, running since {self.time}, has ended without a word"
        return f"{self.state} at {self.time}" + (f": {self.why}" if self.why else "")


class Driver:
    """The driver of this process, on the checkpoint in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._word = Word(RUNNING, os.getpid(), socket.gethostname(), _now())

    @contextmanager
    def alone(self) -> Iterator[Driver]:
        """Be the one driver for a while; raise PipelineBusy if there is one already."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)  # Java does not inherit it
        try:
            self._lock(descriptor)
            self._say(descriptor, self._word)
            yield self
            self._say(descriptor, self._word)
        except PipelineBusy:
            raise
        except BaseException as error:
            text = " ".join(text_of(error).split()) or name_of(error)
            self._say(descriptor, replace(self._word, state=FAILED, time=_now(), why=text))
            raise
        finally:
            os.close(descriptor)

    def end(self, state: str) -> None:
        """Leave word how it ended."""
        self._word = replace(self._word, state=state, time=_now())

    def _lock(self, descriptor: int) -> None:
        for _ in range(_LOOKS):  # somebody who looks how it gets on holds the lock for a moment
            if lock(descriptor, self._file, "driver"):
                return
            pause(_BETWEEN_LOOKS_S)
        word = _read(self._file)
        who = "another driver" if word is None else f"process {word.pid} on {word.host}, since {word.time},"
        raise PipelineBusy(
            f"{who} runs a pipeline on the checkpoint {self._file.parent}: there can be one at a time. Stop that one "
            "first, or give this pipeline a checkpoint of its own"
        )

    @staticmethod
    def _say(descriptor: int, word: Word) -> None:
        text = json.dumps(vars(word)).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))


def last_word(folder: Path) -> Word | None:
    """Return what is known of the driver on a checkpoint; None if there never was one."""
    file = folder / _FILE
    word = _read(file)
    if word is None or word.state != RUNNING or _is_locked(file):
        return word
    return replace(word, state=CRASHED)


def _read(file: Path) -> Word | None:
    with suppress(OSError, ValueError, TypeError):  # not there, or just being written
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Word(**told)
    return None


def _is_locked(file: Path) -> bool:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
