"""The entries of a task queue: the task in `data`, its id and kind beside it for whoever reads along."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock import envelope
from penstock.errors import DecodeError
from penstock.keys import TaskKeys
from penstock.protection import Protection
from penstock.serializers import PayloadLimits
from penstock.task import LIMITS, Task, check_id, decode_task

TASK_ID = "task_id"
KIND = "kind"
ATTEMPTS = "attempts"  # runs that a task had in the lane from which it was moved
_MOST_RUNS = 1 << 31  # that are counted


class Malformed(DecodeError):
    """An entry is no task; `task_id` and `kind` are what could be made out of it."""

    def __init__(self, text: str, task_id: str, kind: str) -> None:
        super().__init__(text)
        self.task_id, self.kind = task_id, kind


class _Outline(msgspec.Struct):
    id: str = ""
    kind: str = ""


class TaskEntries:
    """What the entries of one queue hold. A protected task is bound to the queue and to its id: lanes it may change."""

    def __init__(self, keys: TaskKeys, protection: Protection | None, limits: PayloadLimits = LIMITS) -> None:
        self._place, self._protection, self._limits = keys.tasks().stream, protection, limits

    def close(self, body: bytes, task: Task) -> bytes:
        """Return the bytes of a task as they are stored."""
        return body if self._protection is None else self._protection.protect(body, self._place, task.id)

    def open(self, raw: bytes, task_id: str) -> bytes:
        """Return the bytes of a task from what is stored; raise NotAuthentic for what a stranger wrote."""
        return raw if self._protection is None else self._protection.open(raw, self._place, task_id)

    def read(self, fields: Sequence[bytes], runs: int = 0) -> Task:
        """Read the task of an entry that had so many runs before; raise Malformed for what is none."""
        if len(fields) == 6 and fields[0] == b"data" and self._protection is None:
            raw, task_id = fields[1], ""
        else:
            by_name = envelope.as_mapping(fields)
            task_id = envelope.text(by_name.get(TASK_ID))
            raw = by_name.get(envelope.DATA, b"")
            before = envelope.number(by_name.get(ATTEMPTS, b"0"))
            if before is None:
                what = f"the field {ATTEMPTS!r} must be a whole number, not {by_name[ATTEMPTS][:40]!r}"
                raise Malformed(what, *_outline(fields, raw))
            runs += min(before, _MOST_RUNS)
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
    try:
        check_id("id", task_id)
    except ValueError:
        task_id = ""
    return task_id, envelope.text(by_name.get(KIND)) or said.kind
