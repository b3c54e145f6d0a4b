"""Dead letters, by cause, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import envelope, ids
from penstock.ops.model.streams import FieldValue, Payload, StreamKind
from penstock.shown import to_json


@dataclass(frozen=True, slots=True)
class DeadLetterStreamInfo:
    """One stream of dead letters."""

    stream: str
    kind: StreamKind  # what its messages were: STREAM, QUEUE, TASKS or SERVICE
    owner: str  # the stream, queue or service; '' = cannot be derived from the name
    count: int
    first_id: str = ""
    last_id: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A dead letter without its whole payload: `fields` hold the first bytes of each value."""

    stream: str  # of the dead letters
    id: str
    reason: str
    error: str
    error_text: str
    traceback: str
    source_stream: str
    source_id: str
    group: str
    consumer: str
    attempts: int
    deliveries: int
    redrives: int
    dead_at_ms: int
    message_id: str | None
    task_id: str
    task_kind: str
    cut: str
    fingerprint: str  # the same for failures of one cause
    payload: Payload
    fields: tuple[FieldValue, ...] = ()

    @property
    def dead_at(self) -> datetime:
        """When it was dead-lettered."""
        return ids.moment(self.dead_at_ms)

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return sum(each.size for each in self.fields)

    @property
    def editable(self) -> Any:
        """What `redrive_edited()` replaces: the decoded payload; of a task, its own payload."""
        value = self.payload.value
        return value["payload"] if self.task_id and isinstance(value, Mapping) and "payload" in value else value

    @property
    def is_editable(self) -> bool:
        """Whether `editable` is complete and survives being written as JSON; bytes, for example, do not."""
        is_cut = any(each.name == envelope.DATA and each.is_cut for each in self.fields)
        if is_cut or self.payload.form not in {"json", "msgpack", "text", "task"}:
            return False
        return bool(json.loads(to_json(self.editable)) == self.editable)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant: those that match everything that is given."""

    ids: frozenset[str] = frozenset()  # of records, or of tasks
    reason: str | None = None
    error: str | None = None  # the class
    kind: str | None = None  # of tasks
    fingerprint: str | None = None
    source: str | None = None  # the stream they come from
    since_ms: int = 0
    until_ms: int | None = None
    text: str | None = None  # in the error or the payload


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters that failed in the same way."""

    fingerprint: str
    reason: str
    error: str
    error_text: str  # of the newest
    count: int
    first_at_ms: int
    last_at_ms: int
    sample_id: str  # the newest record
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Dead letters by cause, the most frequent first; `is_complete` is false if there were too many to read."""

    groups: tuple[FailureGroup, ...]
    read: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """What a redrive did, or, of a dry run, would do."""

    matched: int
    redriven: int
    refused: int  # redriven too often already, without a payload, open again, or gone
    new_ids: tuple[str, ...] = ()  # of entries, or of tasks
    is_dry_run: bool = False
    is_complete: bool = True  # false: `limit` was reached first
