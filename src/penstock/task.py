"""Task and Result: the values that cross the task queue, whatever carries or stores them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from penstock import ids
from penstock.encode_errors import find_unencodable
from penstock.errors import ConfigurationError, DecodeError, EncodeError, PayloadTooLarge, cut, text_of
from penstock.keys import check_name
from penstock.number_checks import check_seconds
from penstock.serializers import PayloadLimits
from penstock.type_checks import check_type

_Value = TypeVar("_Value")
_Name = TypeVar("_Name", bound=StrEnum)
SCHEMA_VERSION = 1  # the major: a task of a higher one is refused, unknown fields are ignored
LIMITS = PayloadLimits()
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError)
_NEW_IDS = ids.MessageIds()
ID_PATTERN = r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}"  # safe as a file name, a key of an object store and in a URL
_ID = re.compile(ID_PATTERN)
_TAG = re.compile(r"[0-9A-Za-z_.-]{1,64}")  # part of the name of a stream
_MAX_REQUIRED = 200  # characters of all capabilities and the commas between them, which a stream name has room for


def _now() -> datetime:
    return datetime.now(UTC)


def check_id(what: str, value: object) -> None:
    """Raise ConfigurationError unless the value can be a task id in every queue and back-end."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or ".." in value:
        raise ConfigurationError(
            f"{what}={value!r} must be 1 to 128 letters, digits, '_', '-' or single dots, and start with a "
            "letter or digit"
        )


_KINDS: set[str] = set()  # that were checked: there are few kinds and many tasks
_MAX_KINDS = 1_000


def _check_kind(kind: str) -> None:
    if kind not in _KINDS:
        check_name("kind", kind)
        if len(_KINDS) < _MAX_KINDS:
            _KINDS.add(kind)


def _check_payload(payload: object) -> None:
    if type(payload) is not dict and not isinstance(payload, Mapping):
        raise ConfigurationError(f"payload={cut(repr(payload))} must be a mapping, such as {{'order': 7}}")
    for name in payload:
        if type(name) is not str and not isinstance(name, str):
            raise ConfigurationError(f"payload has the key {cut(repr(name))}: keys must be strings")


class Status(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    SKIP = "skip"


class Priority(StrEnum):
    """The priority of a task."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


PriorityName: TypeAlias = Literal["high", "normal", "low"]


class Task(msgspec.Struct, kw_only=True, frozen=True):
    """A unit of work of some kind; `requires` names the capabilities that its worker must have.

    `attempts` counts the runs that have begun: 0 for a new task, 1 in its first run. Of tasks with the same `unique`
    text only one is open at a time. `key` is what limits per key go by. `then` are the tasks that follow when this one
    has ended well; each gets this one's result in its payload, under `result`.
    """

    kind: str
    id: str = msgspec.field(default_factory=_NEW_IDS.make)
    payload: Mapping[str, Any] = msgspec.field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    attempts: int = 0
    created_at: datetime = msgspec.field(default_factory=_now)
    schema_v: int = SCHEMA_VERSION
    priority: Priority = Priority.NORMAL
    key: str | None = None
    unique: str | None = None
    timeout_s: float | None = None
    then: tuple[Task, ...] = ()

    if TYPE_CHECKING:  # what it takes is more than what it then has

        def __init__(
            self, *, kind: str, id: str = "", payload: Mapping[str, Any] = {}, requires: AbstractSet[str] = frozenset(),
            attempts: int = 0, created_at: datetime = ..., schema_v: int = SCHEMA_VERSION,
            priority: Priority | PriorityName = Priority.NORMAL, key: str | None = None,
            unique: str | None = None, timeout_s: float | None = None, then: Sequence[Task] = (),
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what no queue could carry, or this version does not understand."""
        _check_kind(self.kind)
        check_id("id", self.id)
        _check_payload(self.payload)
        if self.then:
            self._check_then()
        if self.requires:
            self._check_requires()
        if not isinstance(self.priority, Priority):
            msgspec.structs.force_setattr(self, "priority", _one_of(Priority, "priority", self.priority))
        if self.unique is not None:
            check_name("unique", self.unique)
        if self.key is not None:
            check_name("key", self.key)
        if self.timeout_s is not None:
            check_seconds("timeout_s", self.timeout_s)
        if self.schema_v > SCHEMA_VERSION:
            raise ConfigurationError(
                f"task {self.id} has schema_v={self.schema_v}, but this version of Penstock supports up to "
                f"{SCHEMA_VERSION}: update the worker"
            )

    def _check_then(self) -> None:
        given: object = self.then
        if not isinstance(given, tuple | list) or not all(isinstance(then, Task) for then in given):
            raise ConfigurationError(f"then={cut(repr(given))} must be a tuple of tasks, such as (Task(kind='send'),)")
        if not isinstance(given, tuple):
            msgspec.structs.force_setattr(self, "then", tuple(given))

    def _check_requires(self) -> None:
        given: object = self.requires
        if not isinstance(given, set | frozenset | list | tuple):
            raise ConfigurationError(f"requires={given!r} must be a set of strings, such as {{'gpu'}}")
        for tag in given:
            if not isinstance(tag, str) or not _TAG.fullmatch(tag):
                raise ConfigurationError(
                    f"requires contains {tag!r}: a capability is 1 to 64 letters, digits, '_', '-' or '.'"
                )
        if not isinstance(given, frozenset):
            msgspec.structs.force_setattr(self, "requires", frozenset(given))
        size = len(",".join(self.requires))
        if size > _MAX_REQUIRED:
            raise ConfigurationError(
                f"requires has {size} characters, more than the limit of {_MAX_REQUIRED} for all capabilities "
                "together: use fewer, or shorter names"
            )


class Result(msgspec.Struct, kw_only=True, frozen=True):
    """The outcome of a task."""

    task_id: str
    kind: str
    status: Status = Status.OK
    data: Any = None
    error: str | None = None
    attempts: int = 1
    started_at: datetime | None = None
    finished_at: datetime = msgspec.field(default_factory=_now)
    traceback: str | None = None  # the end of that of the error

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what no back-end could store."""
        _check_kind(self.kind)
        check_id("task_id", self.task_id)
        if not isinstance(self.status, Status):
            msgspec.structs.force_setattr(self, "status", _one_of(Status, "status", self.status))


def _one_of(names: type[_Name], what: str, value: str) -> _Name:
    try:
        return names(value)
    except ValueError:
        raise ConfigurationError(f"{what}={value!r} must be one of {', '.join(names)}") from None


def encode(value: Task | Result) -> bytes:
    """Return the value as MessagePack; raise EncodeError for a payload that MessagePack does not support."""
    try:
        return msgspec.msgpack.encode(value)
    except _REFUSALS as error:
        name, data = (
            (value.id, {"payload": value.payload}) if isinstance(value, Task) else (value.task_id, {"data": value.data})
        )
        why = cut(find_unencodable(data, msgspec.msgpack.encode, _REFUSALS) or text_of(error), 500)
        raise EncodeError(
            f"{type(value).__name__} {name} cannot be encoded: {why}; convert it to a type that MessagePack supports"
        ) from error


def encode_task(task: Task, limits: PayloadLimits, encoder: Callable[[Task], bytes] = encode) -> bytes:
    """Return a task as a queue carries it; raise EncodeError for one that no worker with these limits could read."""
    check_type("task", task, Task, "Task(kind='invoice', payload={'order': 7})")
    raw = encoder(task)
    limits.check_size(len(raw), PayloadTooLarge)
    if limits.may_be_deep(raw):
        try:
            decode_task(raw, limits)
        except DecodeError as error:
            raise EncodeError(f"task {task.id} could not be decoded by a worker: {error}") from error
    return raw


class _Reader(Generic[_Value]):
    """Reads values of one kind: decoders that were made before are twice as fast as new ones."""

    def __init__(self, kind: type[_Value]) -> None:
        self._what = kind.__name__.lower()
        self._msgpack, self._json = msgspec.msgpack.Decoder(kind).decode, msgspec.json.Decoder(kind).decode

    def read(self, raw: bytes) -> _Value:
        try:
            return self._json(raw) if raw[:1] == b"{" else self._msgpack(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DecodeError(f"these {len(raw)} bytes are not a valid {self._what}: {error}") from error


_TASKS, _RESULTS = _Reader(Task), _Reader(Result)


def decode_task(raw: bytes, limits: PayloadLimits = LIMITS) -> Task:
    """Read a task from MessagePack or JSON; raise DecodeError for anything else, and for one beyond the limits."""
    limits.check_size(len(raw), DecodeError)  # first: what it unpacks to takes up to 75 times as much memory
    task = _TASKS.read(raw)
    if limits.may_be_deep(raw):
        waiting = [task]
        while waiting:
            each = waiting.pop()
            limits.check_depth(each.payload, DecodeError)
            waiting += each.then
    return task


def decode_result(raw: bytes) -> Result:
    """Read a result from MessagePack or JSON; raise DecodeError for anything else."""
    return _RESULTS.read(raw)
