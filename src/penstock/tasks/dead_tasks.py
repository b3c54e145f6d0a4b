"""DeadTasks: the tasks that were given up, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from penstock import dead_letter_record, envelope
from penstock.delivery.dead_letters import DeadLetterStream
from penstock.delivery.group_commands import settle
from penstock.errors import NotAuthentic
from penstock.keys import TaskKeys
from penstock.policy import Reason
from penstock.redis.client import StreamClient
from penstock.serializers import PayloadLimits
from penstock.task import LIMITS
from penstock.tasks.entries import ATTEMPTS, KIND, TASK_ID, TaskEntries
from penstock.tasks.lanes import DEFAULT, Lane
from penstock.tasks.listed import DeadTask

_LONGEST_NAME = 512  # characters


class DeadTasks(DeadLetterStream[DeadTask]):
    """The dead letters of one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, limits: PayloadLimits = LIMITS) -> None:
        super().__init__(client, keys.dead, self._read)
        self._keys, self._group, self._limits = keys, group, limits
        self._entries = TaskEntries(keys, client.protection, limits)

    async def get(self, record_id: str) -> DeadTask | None:
        """Return the record of that id, or of the task of that id."""
        if (found := await self.record(record_id)) is not None:
            return found
        async for letter in self.iterate():
            if letter.task_id == record_id:
                return letter
        return None

    def _read(self, entry_id: str, fields: Sequence[bytes]) -> DeadTask:
        letter = _dead_task(entry_id, fields, self._limits)
        with suppress(NotAuthentic):  # what a stranger wrote is shown as it is
            return replace(letter, data=self._entries.open(letter.data, letter.task_id))
        return letter

    async def _put_back(self, letter: DeadTask, _operation: str) -> str | None:
        if letter.reason == Reason.MISSING:
            return None  # there is no task to put back, and its error is the result that callers get
        return letter.task_id if await self.put_back(letter) == "queued" else None

    async def put_back(self, letter: DeadTask) -> str:
        """Put a record back into its lane; return 'queued', or why not: 'gone', 'open' or 'done'.

        Guarantees: the record moves in one step. Its error is not the result of the task any more.
        """
        task = letter.task
        lane = Lane.of(task) if task is not None else DEFAULT
        fields = dead_letter_record.redriven(letter.fields, letter.redrives, letter.source, without={ATTEMPTS})
        keys = [
            self._keys.dead, self._keys.tasks(lane.suffix).stream, self._keys.index, self._keys.done,
            self._keys.results, self._keys.counts, self._keys.lanes,
        ]  # fmt: skip
        args, unconfirmed = [letter.id, lane.name, letter.task_id, letter.kind, self._group, *fields], set[str]()
        answer: bytes = await settle(self._client, "tasks/redrive", keys, args, (letter.id,), unconfirmed)
        is_queued = b"-" in answer or (answer == b"gone" and bool(unconfirmed))
        return "queued" if is_queued else answer.decode()


def _dead_task(entry_id: str, fields: Sequence[bytes], limits: PayloadLimits) -> DeadTask:
    letter = dead_letter_record.parse(entry_id, fields)
    by_name = letter.fields
    found = DeadTask(
        id=entry_id,
        task_id=envelope.text(by_name.get(TASK_ID), _LONGEST_NAME),
        kind=envelope.text(by_name.get(KIND), _LONGEST_NAME),
        reason=letter.reason,
        error=letter.error,
        error_text=letter.error_text,
        attempts=letter.attempts,
        dead_at_ms=letter.dead_at_ms,
        source=f"{letter.source_stream}/{letter.source_id}",
        consumer=letter.consumer,
        redrives=letter.redrives,
        data=letter.data or b"",
        fields=by_name,
        traceback=letter.traceback,
        cut=letter.cut,
        limits=limits,
    )
    task = found.task if not found.task_id else None  # written by hand, without the fields for id and kind
    return found if task is None else replace(found, task_id=task.id, kind=task.kind)
