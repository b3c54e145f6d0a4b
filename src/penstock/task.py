"""Task and Result: the values that cross the task queue, whatever carries or stores them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from penstock import ids
from penstock.errors import ConfigurationError, DecodeError, EncodeError
from penstock.keys import check_name

_Value = TypeVar("_Value")
SCHEMA_VERSION = 1  # the major: a task of a higher one is refused, unknown fields are ignored
_NEW_IDS = ids.MessageIds()
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")  # safe as a file name, a key of an object store and in a URL


def _now() -> datetime:
    return datetime.now(UTC)


def check_id(what: str, value: object) -> None:
    """Raise ConfigurationError unless the value can be a task id in every queue and back-end."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or ".." in value:
        raise ConfigurationError(
            f"{what}={value!r} must be 1 to 128 letters, digits, '_', '-' or single dots, and not begin with a sign"
        )


class Status(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    SKIP = "skip"


class Task(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of work of some kind; `requires` names the capabilities that a worker must have for it."""

    kind: str
    id: str = msgspec.field(default_factory=_NEW_IDS.make)
    payload: Mapping[str, Any] = msgspec.field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    attempts: int = 0
    created_at: datetime = msgspec.field(default_factory=_now)
    schema_v: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what no queue could carry, or this version does not understand."""
        check_name("kind", self.kind)
        check_id("id", self.id)
        if self.schema_v > SCHEMA_VERSION:
            raise ConfigurationError(
                f"task {self.id} has schema_v={self.schema_v}, this version understands up to {SCHEMA_VERSION}: "
                f"update the worker"
            )


class Result(msgspec.Struct, kw_only=True, frozen=True):
    """What became of a task."""

    task_id: str
    kind: str
    status: Status = Status.OK
    data: Any = None
    error: str | None = None
    attempts: int = 1
    started_at: datetime | None = None
    finished_at: datetime = msgspec.field(default_factory=_now)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what no back-end could store."""
        check_name("kind", self.kind)
        check_id("task_id", self.task_id)
        if not isinstance(self.status, Status):
            msgspec.structs.force_setattr(self, "status", _status(self.status))


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise ConfigurationError(f"status={value!r} must be one of {', '.join(Status)}") from None


def encode(value: Task | Result) -> bytes:
    """Return the value as MessagePack; raise EncodeError for a payload that it cannot say."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        name = value.id if isinstance(value, Task) else value.task_id
        raise EncodeError(f"{type(value).__name__} {name} cannot be encoded: {error}") from error


def decode_task(raw: bytes) -> Task:
    """Read a task from MessagePack or JSON; raise DecodeError for anything else."""
    return _decode(raw, Task)


def decode_result(raw: bytes) -> Result:
    """Read a result from MessagePack or JSON; raise DecodeError for anything else."""
    return _decode(raw, Result)


def _decode(raw: bytes, kind: type[_Value]) -> _Value:
    decode = msgspec.json.decode if raw[:1] == b"{" else msgspec.msgpack.decode
    try:
        return decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"these {len(raw)} bytes are no {kind.__name__.lower()}: {error}") from error
