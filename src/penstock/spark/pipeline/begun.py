"""What a task has begun, noted in Redis: by what is left of it a message is known that ends its process.

A handler that calls `os._exit()`, crashes in C or takes more memory than there is leaves nobody who could say anything;
Spark repeats the task. Each task therefore notes that it begins, and that it ends. One that finds a note of its own has
died before: it hands messages over one by one, and notes each before the handler has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

from penstock.errors import PenstockError, WorkerDied
from penstock.policy import Reason
from penstock.spark.pipeline.dead_letters import DeadLetterWriter, Failure

_DONE = 0


class Begun:
    """The notes of one task."""

    def __init__(self, writer: DeadLetterWriter, handler: str, attempts: int) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        self._writer, self._attempts = writer, attempts
        self._task = f"{handler} {0 if context is None else context.partitionId()}"
        self._streams: dict[str, BegunStream] = {}

    def stream(self, name: str, first_id: str) -> BegunStream:
        """Return what was begun of a stream, whose first entry in this task is known; note that the task begins."""
        found = self._streams.get(name)
        if found is None:

            def note(counts: Mapping[str, int]) -> dict[str, int]:
                return self._writer.note_begun(name, first_id, counts)

            found = self._streams[name] = BegunStream(note, self._task, self._attempts)
        return found

    def end(self) -> None:
        """Note that the task has ended, in whatever way: its process is alive."""
        for stream in self._streams.values():
            with suppress(PenstockError):  # then the task is careful should it come again, no more
                stream.end()


class BegunStream:
    """What was begun of one stream."""

    def __init__(self, note: Callable[[Mapping[str, int]], dict[str, int]], task: str, attempts: int) -> None:
        self._note, self._task, self._attempts = note, task, attempts
        self._before = note({task: 1})

    @property
    def alone(self) -> Callable[[str], AbstractContextManager[None]] | None:
        """What is around the handling of each single message, if the task has died before."""
        return self._alone if self._task in self._before else None

    @contextmanager
    def _alone(self, entry_id: str) -> Iterator[None]:
        self.take(entry_id)
        try:
            yield
        finally:
            self._note({entry_id: _DONE})

    def take(self, entry_id: str) -> None:
        """Note that the handler has a message, alone."""
        self._note({entry_id: self._before.get(entry_id, 0) + 1})

    def tries_before(self, entry_id: str) -> int:
        """Return how often the handler had a message and did not survive it."""
        alone = self._before.get(entry_id, 0)
        return alone + 1 if alone else 0  # the first time, it was not alone

    def failure(self, entry_id: str) -> Failure | None:
        """Return what becomes of a message that must not be tried again; None for all others."""
        tries = self.tries_before(entry_id)
        if not tries or tries < self._attempts:
            return None
        why = f"the Python worker ended {tries} times while the handler had this message: os._exit(), out of memory?"
        return Failure(Reason.MAX_DELIVERIES, WorkerDied(why), tries)

    def forget(self, entry_ids: Iterable[str]) -> None:
        """Delete what is noted of messages that are settled."""
        counts = {entry_id: _DONE for entry_id in entry_ids if entry_id in self._before}
        if counts:
            self._note(counts)

    def end(self) -> None:
        """Note that the task has ended."""
        self._note({self._task: _DONE})
