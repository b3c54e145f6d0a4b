"""The entries of a task queue: how tasks are written into their lanes, each id once, and read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from penstock import envelope
from penstock.errors import ConfigurationError, DecodeError
from penstock.keys import TaskKeys, check_name
from penstock.number_checks import number_of_seconds
from penstock.protection import Protection
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.redis.scripts import steps
from penstock.serializers import PayloadLimits
from penstock.task import LIMITS, Task, check_id, decode_task
from penstock.tasks.lanes import Lane
from penstock.type_checks import check_type

TASK_ID = "task_id"
KIND = "kind"
ATTEMPTS = "attempts"  # runs that a task had in the lane from which it was moved
_MAX_RUNS = 1 << 31  # that are counted
_STEP = 500  # tasks per script call


class Malformed(DecodeError):
    """An entry is no task; `task_id` and `kind` are what could be made out of it."""

    def __init__(self, text: str, task_id: str, kind: str) -> None:
        super().__init__(text)
        self.task_id, self.kind = task_id, kind


class _Outline(msgspec.Struct):
    id: str = ""
    kind: str = ""


def runs_before_move(fields: Mapping[str, bytes]) -> int | None:
    """Return how many runs a task had before it was moved to its lane; None = the entry does not say it in a number."""
    before = envelope.number(fields.get(ATTEMPTS, b"0"))
    return None if before is None else min(before, _MAX_RUNS)


def place_in_index(value: bytes) -> tuple[str, str]:
    """Return the entry (`-` = it is scheduled) and the lane that a value of the index of open tasks names."""
    entry_id, _, rest = envelope.text(value).partition(" ")
    return entry_id, rest.partition(" ")[0]


class TaskEntries:
    """What the entries of one queue hold: the task in `data`, its id and kind in separate fields, for other readers.

    A protected task is bound to the queue and to its id: lanes it may change.
    """

    def __init__(self, keys: TaskKeys, protection: Protection | None, limits: PayloadLimits = LIMITS) -> None:
        self._place, self._protection, self._limits = keys.tasks().stream, protection, limits

    def close(self, body: bytes, task: Task) -> bytes:
        """Return the bytes of a task as they are stored."""
        return body if self._protection is None else self._protection.protect(body, self._place, task.id)

    def open(self, raw: bytes, task_id: str) -> bytes:
        """Return the bytes of a task from what is stored; raise NotAuthentic for what a stranger wrote."""
        return raw if self._protection is None else self._protection.open(raw, self._place, task_id)

    def read(self, fields: Sequence[bytes], runs: int = 0) -> Task:
        """Read the task of an entry, with `runs` in this lane as attempts; raise Malformed if it is not a task."""
        if len(fields) == 6 and fields[0] == b"data" and self._protection is None:
            raw, task_id = fields[1], ""
        else:
            by_name = envelope.as_mapping(fields)
            task_id = envelope.text(by_name.get(TASK_ID))
            raw = by_name.get(envelope.DATA, b"")
            before = runs_before_move(by_name)
            if before is None:
                what = f"the field {ATTEMPTS!r} must be a whole number, not {by_name[ATTEMPTS][:40]!r}"
                raise Malformed(what, *_outline(fields, raw))
            runs += before
        try:
            task = decode_task(raw if self._protection is None else self.open(raw, task_id), self._limits)
        except DecodeError as error:
            raise Malformed(str(error), *_outline(fields, raw)) from error
        if task.attempts != runs:
            msgspec.structs.force_setattr(task, "attempts", runs)
        return task


def _outline(fields: Sequence[bytes], raw: bytes) -> tuple[str, str]:
    by_name = envelope.as_mapping(fields)
    try:
        decode = msgspec.json.decode if raw[:1] == b"{" else msgspec.msgpack.decode
        said = decode(raw, type=_Outline)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        said = _Outline()
    task_id = envelope.text(by_name.get(TASK_ID)) or said.id
    kind = envelope.text(by_name.get(KIND)) or said.kind
    return _valid(check_id, "id", task_id), _valid(check_name, "kind", kind)


def _valid(check: Callable[[str, str], object], what: str, value: str) -> str:
    try:
        check(what, value)
    except ValueError:
        return ""
    return value


def when_due(delay: float | None, at: datetime | None) -> str:
    """Return when a task is due, as the script wants it: '' = now."""
    if delay is not None and at is not None:
        raise ConfigurationError("pass either delay or at, not both")
    if delay is not None:
        if not 0 <= number_of_seconds("delay", delay) < 10 * 365 * 86_400:
            raise ConfigurationError(f"delay={delay!r} must be a number of seconds from 0 to ten years")
        return f"+{round(delay * 1000)}" if delay else ""
    if at is None:
        return ""
    check_type("at", at, datetime, "datetime.now(UTC) + timedelta(days=1)")
    if at.tzinfo is None:
        raise ConfigurationError(f"at={at.isoformat()} has no time zone: use datetime(..., tzinfo=UTC)")
    ms = round(at.astimezone(UTC).timestamp() * 1000)
    return str(ms) if ms > time.time() * 1000 else ""


class TaskPublisher:
    """The way into one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, encode: Callable[[Task], bytes]) -> None:
        """`encode` raises EncodeError for a task that no worker could read."""
        self._client, self._keys, self._group, self._encode = client, keys, group, encode
        self._entries = TaskEntries(keys, client.protection)

    async def add(self, tasks: Sequence[Task], due: str) -> list[str]:
        """Add tasks; return for each its id, or that of the open task with the same unique text."""
        # All of them before any is sent: a bad one loses nothing.
        bodies = [self._entries.close(self._encode(task), task) for task in tasks]
        answers: list[str] = []
        for step in steps([len(body) for body in bodies], _STEP):
            answers += await self._add_some(tasks[step], bodies[step], due)
        return answers

    async def _add_some(self, tasks: Sequence[Task], bodies: Sequence[bytes], due: str) -> list[str]:
        numbers: dict[Lane, int] = {}
        args: list[bytes | str | int] = []
        for task, body in zip(tasks, bodies, strict=True):
            lane = Lane.of(task)
            number = numbers.setdefault(lane, len(numbers) + 1)
            args += (number, due, task.id, task.unique or "", task.kind, body)
        keys = self._keys
        names = [
            keys.index, keys.done, keys.unique, keys.counts, keys.lanes, keys.due, keys.bodies,
            *(keys.tasks(lane.suffix).stream for lane in numbers),
        ]  # fmt: skip
        head: list[bytes | str | int] = [self._group, len(numbers), *(lane.name for lane in numbers)]
        # Idempotent: an id that is open or done is not added again.
        reply = await self._client.run("tasks/enqueue", names, [*head, *args], Repeat.IDEMPOTENT)
        return [answer.decode() for answer in reply]
