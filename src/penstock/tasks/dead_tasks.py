"""DeadTasks: the tasks that were given up, and the way back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

from penstock import envelope, ids
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.task import Task
from penstock.tasks.dead import DeadTask
from penstock.tasks.lanes import DEFAULT, Lane

_PAGE = 500
_MARK = "dlq_"
Matches: TypeAlias = Callable[[DeadTask], bool]


class DeadTasks:
    """The dead letters of one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys) -> None:
        self._client, self._keys = client, keys

    async def count(self) -> int:
        """Return how many there are."""
        return int(await self._client.call(self._keys.dead, "XLEN", self._keys.dead))

    async def get(self, record_id: str) -> DeadTask | None:
        """Return the record of that id, or of the task of that id."""
        is_record = all(part.isdigit() for part in record_id.split("-", 1))
        if is_record:
            rows = await self._client.call(self._keys.dead, "XRANGE", self._keys.dead, record_id, record_id)
            if rows:
                return _dead_task(rows[0][0].decode(), rows[0][1])
        async for letter in self.iterate():
            if letter.task_id == record_id:
                return letter
        return None

    async def iterate(self, matches: Matches | None = None, since_ms: int = 0) -> AsyncIterator[DeadTask]:
        """Yield the records, oldest first, that match and are not older than the time."""
        key, start = self._keys.dead, f"{since_ms}-0" if since_ms else "-"
        while True:
            rows = await self._client.call(key, "XRANGE", key, start, "+", "COUNT", _PAGE)
            for entry_id, fields in rows:
                letter = _dead_task(entry_id.decode(), fields)
                if matches is None or matches(letter):
                    yield letter
            if len(rows) < _PAGE:
                return
            start = ids.after(rows[-1][0].decode())

    async def redrive(self, letter: DeadTask) -> str:
        """Put a record back into its lane; return 'queued', or why not: 'gone', 'open' or 'done'.

        Guarantees: the record moves in one step. Its error is not the result of the task any more.
        """
        task = letter.task
        lane = Lane.of(task) if task is not None else DEFAULT
        kept = {name: value for name, value in letter.fields.items() if not name.startswith(_MARK)}
        kept.pop("attempts", None)
        kept[envelope.REDRIVES] = str(letter.redrives + 1).encode()
        kept.setdefault("origin", letter.source.encode())
        keys = [
            self._keys.dead, self._keys.tasks(lane.suffix).stream, self._keys.index, self._keys.done,
            self._keys.results, self._keys.counts, self._keys.lanes,
        ]  # fmt: skip
        flat = [part for pair in kept.items() for part in pair]
        args = [letter.id, lane.name, letter.task_id, letter.kind, *flat]
        answer: bytes = await self._client.run("task_redrive", keys, args, Repeat.IDEMPOTENT)
        return answer.decode() if b"-" not in answer else "queued"

    async def purge(self, record_ids: Sequence[str]) -> int:
        """Delete records for good; return how many."""
        gone = 0
        for start in range(0, len(record_ids), _PAGE):
            page = record_ids[start : start + _PAGE]
            gone += int(
                await self._client.call(self._keys.dead, "XDEL", self._keys.dead, *page, repeat=Repeat.IDEMPOTENT)
            )
        return gone


def _dead_task(entry_id: str, fields: Sequence[bytes]) -> DeadTask:
    by_name = envelope.as_mapping(fields)

    def text(name: str) -> str:
        return by_name.get(name, b"").decode(errors="replace")

    def number(name: str) -> int:
        value = text(name)
        return int(value) if value.isdigit() else 0

    data = by_name.get(envelope.DATA, b"")
    found = DeadTask(
        id=entry_id,
        task_id=text("task_id"),
        kind=text("kind"),
        reason=text("dlq_reason"),
        error=text("dlq_error"),
        error_text=text("dlq_error_text"),
        attempts=number("dlq_attempts"),
        dead_at_ms=number("dlq_time"),
        source=f"{text('dlq_source')}/{text('dlq_id')}",
        consumer=text("dlq_consumer"),
        redrives=number(envelope.REDRIVES),
        data=data,
        fields=by_name,
    )
    return found if found.task_id else _with_names(found)


def _with_names(found: DeadTask) -> DeadTask:
    # Written by hand, without id and kind beside the task.
    task: Task | None = found.task
    if task is None:
        return found
    return DeadTask(
        found.id, task.id, task.kind, found.reason, found.error, found.error_text, found.attempts, found.dead_at_ms,
        found.source, found.consumer, found.redrives, found.data, found.fields,
    )  # fmt: skip
