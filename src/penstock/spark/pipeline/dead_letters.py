"""Dead letters of rows, written by the tasks, once each, with the reason.

A task may run again, and so may a batch. A dead letter is therefore identified by query, batch and entry: the script
that adds it also adds the id to a set. A row that was given up stays given up: tasks read the set first, so that a
handler that fails today and succeeds tomorrow cannot put a row into both places.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock import dead_letter_record, ids
from penstock.errors import PenstockError
from penstock.keys import StreamKeys
from penstock.policy import Reason
from penstock.redis.blocking import Reply
from penstock.redis.retry import Repeat
from penstock.spark.pipeline.files import joined, local_path
from penstock.spark.runtime.link import Link, retry
from penstock.sync.redis.client import StreamClient

_REMEMBER_S = 7 * 24 * 3600
_HOUR_MS = 3_600_000
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
Id: TypeAlias = str


@dataclass(frozen=True)
class Failure:
    """Why a row becomes a dead letter."""

    reason: Reason
    error: BaseException | None = None
    attempts: int = 1


@dataclass(frozen=True)
class DeadLetterConfig:
    """How tasks reach the dead letters; pickled into each task."""

    link: Link
    pipeline: str
    checkpoint: str
    scope: str = ""  # identifies a step on a branch: what it gives up, other branches keep

    def open(self) -> DeadLetterWriter:
        """Return the writer for the current task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query, batch = (None, None) if context is None else (context.getLocalProperty(name) for name in (QUERY, BATCH))
        client = self.link.client()
        if query is None or batch is None:
            # Spark Connect does not pass them to tasks. An entry is in only one batch of a query, so its hour will do.
            query = query_id(self.checkpoint)
            return DeadLetterWriter(client, self.pipeline, lambda each: f"{query}:hour {_hour(each)}{self.scope}")
        return self.writer(f"{query}:{batch}{self.scope}")

    def writer(self, part: str) -> DeadLetterWriter:
        """Return a writer that records all entries under one name."""
        return DeadLetterWriter(self.link.client(), self.pipeline, lambda _: part)


class DeadLetterWriter:
    """The dead letters of one task."""

    def __init__(self, client: StreamClient, pipeline: str, part: Callable[[Id], str]) -> None:
        """`part` returns the name under which an entry is recorded."""
        self._client, self._pipeline, self._part = client, pipeline, part
        self._consumer = f"spark-{socket.gethostname()}"
        self._known: dict[tuple[str, str], set[Id]] = {}

    def is_given_up(self, stream: str, entry_id: Id) -> bool:
        """Return whether an earlier attempt of this batch gave the entry up."""
        return entry_id in self._noted(stream, self._part(entry_id))

    def given_up(self, stream: str) -> frozenset[Id]:
        """Return the entries of a stream that were given up, for a writer that uses one name."""
        return frozenset(self._noted(stream, self._part("0-0")))

    def _noted(self, stream: str, part: str) -> set[Id]:
        known = self._known.get((stream, part))
        if known is None:
            _, marks = self._keys(stream, part)
            found = self._retry(lambda: self._client.call(marks, "SMEMBERS", marks))
            known = self._known[stream, part] = {member.decode() for member in found}
        return known

    def dead_letter(self, stream: str, entry_id: Id, data: bytes | None, failure: Failure) -> None:
        """Add the dead letter of an entry, unless it exists."""
        part = self._part(entry_id)
        dead, marks = self._keys(stream, part)
        fields = self._fields(stream, entry_id, data)
        source = self._client.keys(stream).stream
        record = dead_letter_record.record(
            fields, source, entry_id, self._pipeline, self._consumer, failure.reason, failure.error, failure.attempts,
            failure.attempts,
        )  # fmt: skip
        arguments = [entry_id, _REMEMBER_S, *record]
        self._retry(lambda: self._client.run("spark/dead_letter", [dead, marks], arguments, Repeat.IDEMPOTENT))
        self._noted(stream, part).add(entry_id)
        self._client.dead_letter_retention.after(dead)

    def note_begun(self, stream: str, entry_id: Id, counts: Mapping[str, int]) -> dict[str, int]:
        """Record the attempts that a task begins (0 = it is done); return what was recorded before."""
        begun = self._dead(stream).spark_begun(self._part(entry_id))
        arguments = [_REMEMBER_S, *(word for pair in counts.items() for word in pair)]
        found = self._retry(lambda: self._client.run("spark/begin", [begun], arguments, Repeat.IDEMPOTENT))
        return {name.decode(): int(count) for name, count in zip(found[::2], found[1::2], strict=True)}

    def _fields(self, stream: str, entry_id: Id, data: bytes | None) -> list[bytes]:
        # Read only now: carrying all fields of all rows through the plan would slow down the good rows.
        key = self._client.keys(stream).stream
        found = self._retry(lambda: self._client.call(key, "XRANGE", key, entry_id, entry_id))
        if found:
            fields: list[bytes] = found[0][1]
            return fields
        return [] if data is None else [b"data", data]  # the entry has been trimmed

    def _keys(self, stream: str, part: str) -> tuple[str, str]:
        dead = self._dead(stream)
        return dead.stream, dead.spark_dead_lettered(part)

    def _dead(self, stream: str) -> StreamKeys:
        return StreamKeys(self._client.keys(stream).default_dead_letters())

    @staticmethod
    def _retry(call: Callable[[], Reply]) -> Reply:
        return retry(call, what="writing dead letters")


def _hour(entry_id: Id) -> int:
    return ids.parse(entry_id)[0] // _HOUR_MS


def query_id(checkpoint: str) -> str:
    """Return the id of the query with a checkpoint on a disk of this machine."""
    file = local_path(joined(checkpoint, "spark", "metadata"))
    try:
        if file is None:
            raise PenstockError(f"checkpoint {checkpoint} is not on a disk of this machine")
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError) as error:
        raise PenstockError(
            f"cannot read the query id in the checkpoint ({error}): with Spark Connect the checkpoint must be "
            "on a disk that client, server and executors share"
        ) from None
