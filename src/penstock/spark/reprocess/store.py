"""What a reprocessing keeps outside of Spark: a result for each message, and what its tasks must know of each other."""

from __future__ import annotations

import hashlib
import random
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import BackendUnavailable, ConfigurationError
from penstock.keys import StreamKeys
from penstock.redis.retry import Repeat, pause_s
from penstock.runtime.threads import pause, side_by_side
from penstock.settings import ResultBackendSettings
from penstock.spark.lake.parquet import FilesMissing
from penstock.spark.runtime.link import Link, retry
from penstock.sync.providers import make_result_backend
from penstock.task import Result, check_id

T = TypeVar("T")
_AT_ONCE = 16
_TRIES = 8
_MOST_NAME = 60
_REMEMBER_S = 24 * 3600
_rng = random.Random()


def check_run_name(name: str) -> None:
    """Raise ConfigurationError for a name that cannot stand before an id."""
    check_id("--name", name)
    if len(name) > _MOST_NAME:
        raise ConfigurationError(f"--name has {len(name)} characters, more than the limit of {_MOST_NAME}")


def result_id(name: str | None, message_id: str | None, stream: str, entry_id: str) -> str:
    """Return the id of a message's result: the message's own id, so that repeating the work repeats no result.

    Of a message without an id, or with an unusable one, a hash stands for it.
    """
    prefix = "" if name is None else f"{name}."
    known = message_id or f"{stream}/{entry_id}"
    try:
        check_id("id", prefix + known)
    except ConfigurationError:
        return f"{prefix}h{hashlib.sha256(known.encode()).hexdigest()[:32]}"
    return prefix + known


class ReprocessResults:
    """The result back-end of one process: asked for many ids at a time, and tried again while it is away."""

    def __init__(self, settings: ResultBackendSettings) -> None:
        self._backend: Any = make_result_backend(settings)

    def find(self, ids: Iterable[str]) -> dict[str, Result]:
        """Return the results that there are."""
        wanted = list(dict.fromkeys(ids))
        found = _retry(lambda: side_by_side(_AT_ONCE, self._backend.get, wanted))
        return {task_id: result for task_id, result in zip(wanted, found, strict=True) if result is not None}

    def save(self, results: Sequence[Result]) -> dict[str, Result]:
        """Save results; return those that an earlier, different one was in the way of, with that one."""
        if not results:
            return {}
        saved = _retry(lambda: self._backend.save_many(results))
        return self.find(result.task_id for result, is_ours in zip(results, saved, strict=True) if not is_ours)

    def close(self) -> None:
        """Let go of connections."""
        self._backend.close()


def _retry(call: Callable[[], T]) -> T:
    # Every call may be repeated: the first result of an id stays, and saving it again is no second one.
    for attempt in range(1, _TRIES):
        try:
            return call()
        except BackendUnavailable:
            pause(pause_s(attempt, _rng))
    return call()


@contextmanager
def marked(results: ResultBackendSettings, *, is_here: bool) -> Iterator[str | None]:
    """Keep an empty file that all tasks can see: in the folder of the results, or anywhere on the only machine.

    The driver and all executors must share the folder of the results: a dead letter is deleted when its result is
    there. None if the results are not in files, and the executors not here.
    """
    if results.provider == "fs":
        root = Path(results.root).absolute()
        root.mkdir(parents=True, exist_ok=True)
    elif is_here:
        root = Path(tempfile.gettempdir())
    else:
        yield None
        return
    mark = root / f".penstock-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def check_mark(mark: str | None) -> None:
    """Raise FilesMissing where the file cannot be seen; in a task, before it does anything."""
    if mark is not None and not Path(mark).exists():
        raise FilesMissing(
            f"{mark}, which the driver created, does not exist on {socket.gethostname()}: use a folder for "
            "--results that the driver and all executors share, or another back-end. No message was handled "
            "there"
        )


def request_stop(mark: str) -> None:
    """Have all tasks return before they handle further messages."""
    with suppress(FileNotFoundError), Path(mark).open("r+b") as file:  # not created again after the run
        file.write(b"stop")


def must_stop(mark: str | None) -> bool:
    """Return whether the driver has requested a stop."""
    with suppress(FileNotFoundError):
        return mark is not None and Path(mark).stat().st_size > 0
    return False


@dataclass(frozen=True)
class StuckNotes:
    """Dead letters with which a worker had to be ended, as a set in Redis of one run; it is pickled into the tasks.

    Their failures are no results, so they are noted aside.
    """

    link: Link
    letters: str  # the stream of the dead letters
    run: str

    def note(self, result: str) -> None:
        """Note a message by the id of its result."""
        client, key = self.link.client(), self._key()

        def add() -> None:
            client.call(key, "SADD", key, result, repeat=Repeat.IDEMPOTENT)
            client.call(key, "EXPIRE", key, _REMEMBER_S, repeat=Repeat.IDEMPOTENT)

        retry(add, what="recording a message that hangs")

    def known(self) -> frozenset[str]:
        """Return those that were noted."""
        client, key = self.link.client(), self._key()
        found = retry(lambda: client.call(key, "SMEMBERS", key), what="reading which messages hang")
        return frozenset(member.decode() for member in found)

    def _key(self) -> str:
        return StreamKeys(self.link.client().keys(self.letters).stream).spark_dead_lettered(f"reprocess {self.run}")
