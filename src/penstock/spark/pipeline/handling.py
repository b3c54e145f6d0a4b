"""The step that runs the workers' batch handler on the executors, over Arrow batches.

A handler that calls `os._exit()`, crashes in C or runs out of memory ends the Python worker without a trace, and Spark
repeats the task. To find the message that does this, each task records in Redis that it begins and that it ends. A
task that finds its own record has died before: it handles messages one by one, and records each one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import DecodeError, PenstockError, WorkerDied
from penstock.model import StreamMessage
from penstock.policy import Reason
from penstock.serializers import load_serializer
from penstock.spark.pipeline.caller import Caller, Outcome
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, DeadLetterWriter, Failure
from penstock.spark.pipeline.steps import Handler, imported
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc

_DONE = 0
NEEDED = ("stream", "id", "data")
_MESSAGE_COLUMNS = (*NEEDED, "key", "message_id", "headers")
Columns: TypeAlias = Mapping[str, list[Any]]


class Begun:
    """The records of one task."""

    def __init__(self, writer: DeadLetterWriter, handler: str, attempts: int) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        self._writer, self._attempts = writer, attempts
        self._task = f"{handler} {0 if context is None else context.partitionId()}"
        self._streams: dict[str, BegunStream] = {}

    def stream(self, name: str, first_id: str) -> BegunStream:
        """Return the records of a stream, given the id of its first entry in this task; record that the task begins."""
        found = self._streams.get(name)
        if found is None:

            def note(counts: Mapping[str, int]) -> dict[str, int]:
                return self._writer.note_begun(name, first_id, counts)

            found = self._streams[name] = BegunStream(note, self._task, self._attempts)
        return found

    def end(self) -> None:
        """Record that the task has ended, successfully or not: its process is alive."""
        for stream in self._streams.values():
            with suppress(PenstockError):  # then a repeated task handles messages one by one, nothing worse
                stream.end()


class BegunStream:
    """The records of one task and stream."""

    def __init__(self, note: Callable[[Mapping[str, int]], dict[str, int]], task: str, attempts: int) -> None:
        self._note, self._task, self._attempts = note, task, attempts
        self._before = note({task: 1})

    @property
    def alone(self) -> Callable[[str], AbstractContextManager[None]] | None:
        """The context for handling each single message, if the task has died before."""
        return self._alone if self._task in self._before else None

    @contextmanager
    def _alone(self, entry_id: str) -> Iterator[None]:
        self.take(entry_id)
        try:
            yield
        finally:
            self._note({entry_id: _DONE})

    def take(self, entry_id: str) -> None:
        """Record that the handler gets one message alone."""
        self._note({entry_id: self._before.get(entry_id, 0) + 1})

    def tries_before(self, entry_id: str) -> int:
        """Return how often the process died while handling a message."""
        alone = self._before.get(entry_id, 0)
        return alone + 1 if alone else 0  # the first time, it was among others

    def failure(self, entry_id: str) -> Failure | None:
        """Return the failure of a message that must not be tried again; None for all others."""
        tries = self.tries_before(entry_id)
        if not tries or tries < self._attempts:
            return None
        why = f"the Python worker died {tries} times while handling this message: os._exit() or out of memory?"
        return Failure(Reason.MAX_DELIVERIES, WorkerDied(why), tries)

    def forget(self, entry_ids: Iterable[str]) -> None:
        """Delete the records of messages that are done or dead-lettered."""
        counts = {entry_id: _DONE for entry_id in entry_ids if entry_id in self._before}
        if counts:
            self._note(counts)

    def end(self) -> None:
        """Record that the task has ended."""
        self._note({self._task: _DONE})


@dataclass(frozen=True)
class HandlerTask(Shipped):
    """Runs the handler on the rows of a task; called by Spark with Arrow batches."""

    step: Handler
    dead_letters: DeadLetterConfig
    form: str
    output: pa.Schema | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows that the handler completed, with its output."""
        freeze_gc()
        function = imported("handler", self.step.handler)
        decode = bytes if self.form in ("raw", "avro") else load_serializer(self.form).decode
        caller = Caller(
            function,
            self.step.max_attempts,
            has_output=self.output is not None,
            timeout_s=self.step.timeout_s,
        )
        writer = self.dead_letters.open()
        begun = Begun(writer, self.step.handler, self.step.max_attempts)
        try:
            for batch in batches:
                yield self._handled(batch, caller, writer, begun, decode)
        finally:
            begun.end()
            caller.close()

    def _handled(
        self, batch: Any, caller: Caller, writer: DeadLetterWriter, begun: Begun, decode: Callable[[bytes], Any]
    ) -> Any:
        columns = {name: batch.column(name).to_pylist() for name in _MESSAGE_COLUMNS if name in batch.schema.names}
        streams, ids = columns["stream"], columns["id"]
        kept: list[int] = []
        outputs: list[Mapping[str, Any]] = []
        for stream in dict.fromkeys(streams):
            of_stream = (row for row, name in enumerate(streams) if name == stream)
            rows = [row for row in of_stream if not writer.is_given_up(stream, ids[row])]
            if not rows:
                continue
            notes = begun.stream(stream, ids[rows[0]])
            outcome = self._of_stream(columns, stream, rows, caller, decode, writer, notes)
            for row in rows:
                if ids[row] in outcome.failed:
                    writer.dead_letter(stream, ids[row], _bytes(columns, row), outcome.failed[ids[row]])
                else:
                    kept.append(row)
                    outputs.append(outcome.done[ids[row]])
            notes.forget(ids[row] for row in rows)
        in_order = sorted(range(len(kept)), key=kept.__getitem__)
        rows_kept = batch.take(pa.array([kept[n] for n in in_order], pa.int64()))
        return self._with_output(rows_kept, [outputs[n] for n in in_order])

    def _of_stream(
        self,
        columns: Columns,
        stream: str,
        rows: Sequence[int],
        caller: Caller,
        decode: Callable[[bytes], Any],
        writer: DeadLetterWriter,
        notes: BegunStream,
    ) -> Outcome:
        def give_up(entry_id: str, failure: Failure) -> None:
            writer.dead_letter(stream, entry_id, _bytes(columns, columns["id"].index(entry_id)), failure)

        whole = Outcome()
        messages: dict[str, StreamMessage] = {}
        for row in rows:
            entry_id = columns["id"][row]
            if (failure := notes.failure(entry_id)) is not None:
                whole.failed[entry_id] = failure
                continue
            try:
                message = _message(columns, row, stream, decode)
            except DecodeError as error:
                whole.failed[entry_id] = Failure(Reason.DECODE_ERROR, error)
            else:
                message.attempts = message.delivery_count = notes.tries_before(entry_id) + 1
                messages[entry_id] = message
        waiting = list(messages.values())
        for first in range(0, len(waiting), self.step.batch_size):
            outcome = caller.handle(waiting[first : first + self.step.batch_size], give_up, notes.alone)
            self._check_outputs(outcome, messages)
            whole.done |= outcome.done
            whole.failed |= outcome.failed
        return whole

    def _check_outputs(self, outcome: Outcome, messages: Mapping[str, StreamMessage]) -> None:
        """Give up messages whose output does not fit the columns, so that other rows are unaffected."""
        if self.output is None or self._why_unfit(list(outcome.done.values())) is None:
            return
        for entry_id, output in list(outcome.done.items()):
            error = self._why_unfit([output])
            if error is not None:
                del outcome.done[entry_id]
                outcome.failed[entry_id] = Failure(Reason.INVALID, error, messages[entry_id].attempts)

    def _why_unfit(self, outputs: list[Mapping[str, Any]]) -> Exception | None:
        assert self.output is not None
        unknown = {name for output in outputs for name in output} - set(self.output.names)
        if unknown:
            return ValueError(f"the output of the handler has an unknown column {min(unknown)!r}")
        try:
            made = pa.RecordBatch.from_pylist([dict(output) for output in outputs], self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
            return error
        for column, known in zip(made.columns, self.output, strict=True):
            if column.null_count and not known.nullable:
                return ValueError(
                    f"the output of the handler has no value for column {known.name!r}, which is NOT NULL"
                )
        return None

    def _with_output(self, rows: Any, outputs: list[Mapping[str, Any]]) -> Any:
        if self.output is None:
            return rows
        added = pa.RecordBatch.from_pylist([dict(output) for output in outputs], self.output)
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *added.columns], schema=pa.schema([*rows.schema, *self.output])
        )


def _bytes(columns: Columns, row: int) -> bytes | None:
    value = columns["data"][row]
    return value.encode() if isinstance(value, str) else value


def _message(columns: Columns, row: int, stream: str, decode: Callable[[bytes], Any]) -> StreamMessage:
    raw = _bytes(columns, row)
    if raw is None:
        raise DecodeError("the entry has no payload")
    values = {name: columns[name][row] for name in ("id", "key", "message_id") if name in columns}
    headers = dict(columns["headers"][row] or ()) if "headers" in columns else {}
    return StreamMessage(data=decode(raw), delivery_count=1, attempts=1, stream=stream, headers=headers, **values)
