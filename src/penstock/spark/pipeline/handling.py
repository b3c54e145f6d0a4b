"""The batch handler of the workers, run on the executors over Arrow batches."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import ConfigurationError, DecodeError, FatalError, PenstockError, text_of
from penstock.model import StreamMessage
from penstock.policy import Reason
from penstock.runtime import aio, threads
from penstock.serializers import load_serializer
from penstock.spark.pipeline.begun import Begun, BegunStream
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, DeadLetterWriter, Failure
from penstock.spark.pipeline.deadline import Alarm, Deadline
from penstock.spark.pipeline.steps import Handler, imported
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc

logger = logging.getLogger("penstock.spark")
NEEDED = ("stream", "id", "data")
_OF_A_MESSAGE = (*NEEDED, "key", "message_id", "headers")
Columns: TypeAlias = Mapping[str, list[Any]]
_OUTPUT_MISSING: Mapping[str, Any] = {}


class NotDone(PenstockError):
    """A handler did not return the id of a message, however often it was asked."""


class _Ended(Exception):
    """Carries what a handler raised that is no Exception: neither the event loop nor the task may end with it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@dataclass
class Outcome:
    """What became of messages: the output of those that are done, by id, and the failure of the others."""

    done: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)


Call: TypeAlias = Callable[[list[StreamMessage]], Any]
GiveUp: TypeAlias = Callable[[str, Failure], None]
Alone: TypeAlias = Callable[[str], AbstractContextManager[object]]


def _forget(_entry_id: str, _failure: Failure) -> None:
    """Note nothing of a message that ends this process."""


class Caller:
    """Calls a handler, async or plain, and decides what its answer means."""

    def __init__(self, function: Call, attempts: int, *, has_output: bool, timeout_s: float | None = None) -> None:
        self._function, self._attempts, self._has_output = function, attempts, has_output
        self._deadline = None if timeout_s is None else Deadline(timeout_s)
        self._runner: asyncio.Runner | None = None
        self._give_up: GiveUp = _forget

    def close(self) -> None:
        """End the event loop, if an async handler needed one."""
        if self._runner is not None:
            self._runner.close()

    def handle(self, messages: list[StreamMessage], give_up: GiveUp = _forget, alone: Alone | None = None) -> Outcome:
        """Hand the messages over together, and those that are not done one by one.

        `give_up` is told of the message with which this process ends, if one cannot be interrupted. With `alone` all
        are handed over one by one, each within what it returns: a process before this one has died of one of them.
        """
        self._give_up = give_up
        outcome = Outcome()
        if alone is None:
            self._settle(messages, outcome)
        else:
            for message in messages:
                with alone(message.id):
                    self._settle([message], outcome)
        return outcome

    def _settle(self, messages: list[StreamMessage], outcome: Outcome) -> None:
        error = self._try(messages, outcome)
        for message in messages:
            if message.id not in outcome.done:
                self._insist(message, error if len(messages) == 1 else None, outcome)

    def _insist(self, message: StreamMessage, error: BaseException | None, outcome: Outcome) -> None:
        for attempt in range(message.attempts + 1, self._attempts + 1):
            if isinstance(error, FatalError):
                break
            message.attempts = message.delivery_count = attempt
            error = self._try([message], outcome)
            if message.id in outcome.done:
                return
        if error is None:
            error = NotDone(f"the handler did not return the id {message.id} as done")
        reason = Reason.FATAL if isinstance(error, FatalError) else Reason.MAX_DELIVERIES
        outcome.failed[message.id] = Failure(reason, error, message.attempts)

    def _try(self, messages: list[StreamMessage], outcome: Outcome) -> BaseException | None:
        try:
            answer = self._call(messages.copy())
        except ConfigurationError:
            raise  # the same for every message: the pipeline cannot go on
        except Exception as raised:
            error = raised.error if isinstance(raised, _Ended) else raised
            logger.warning(
                "the handler failed for message %s%s in attempt %d: %s", messages[0].id,
                f" and {len(messages) - 1} more" if messages[1:] else "", messages[0].attempts, text_of(error, repr),
                exc_info=error,
            )  # fmt: skip
            return error
        asked = {message.id for message in messages}
        for entry_id, output in _answers(answer, has_output=self._has_output):
            if entry_id in asked:
                outcome.done[entry_id] = output
        return None

    def _call(self, messages: list[StreamMessage]) -> Any:
        if self._deadline is None:
            return self._answer(messages)
        overdue = self._deadline.overdue

        def give_up() -> None:
            if len(messages) == 1:  # of several, nobody knows which it is: they are handed over one by one next time
                failure = Failure(Reason.MAX_DELIVERIES, overdue, messages[0].attempts)
                self._give_up(messages[0].id, failure)

        return self._deadline.call(lambda: self._answer(messages), give_up)

    def _answer(self, messages: list[StreamMessage]) -> Any:
        try:
            answer = self._function(messages)
        except BaseException as error:
            raise _contained(error, threads.comes_from_outside)  # noqa: B904 - nearly always the same one
        if not inspect.isawaitable(answer):
            return answer
        if self._deadline is not None:
            self._deadline.put_off()
        runner, self._runner = self._runner or asyncio.Runner(), None
        try:
            found = runner.run(_awaited(answer, self._deadline))
        except Exception:
            self._runner = runner
            raise
        except BaseException:  # an alarm has torn it apart, and what is left in it may not want to end
            runner.get_loop().close()
            raise
        self._runner = runner
        return found


def _contained(error: BaseException, comes_from_outside: Callable[[BaseException], bool]) -> BaseException:
    """Return what to raise for an error of a handler: the error itself, unless it would end more than one attempt."""
    if isinstance(error, Exception | Alarm) or comes_from_outside(error):
        return error
    return _Ended(error)


async def _awaited(answer: Any, deadline: Deadline | None) -> Any:
    try:
        return await _in_time(answer, deadline)
    except BaseException as error:
        raise _contained(error, aio.comes_from_outside)  # noqa: B904 - nearly always the same one


async def _in_time(answer: Any, deadline: Deadline | None) -> Any:
    if deadline is None:
        return await answer
    limit = asyncio.timeout(deadline.timeout_s)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if limit.expired():  # else it is one of the handler's own
            raise deadline.overdue from None
        raise


def _answers(answer: Any, *, has_output: bool) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if answer is None:
        return []
    if has_output:
        if not isinstance(answer, Mapping) or not all(isinstance(value, Mapping) for value in answer.values()):
            raise ConfigurationError(
                f"the step has an output: its handler must return a mapping of ids to mappings of columns, not "
                f"{type(answer).__name__}"
            )
        return list(answer.items())
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise ConfigurationError(f"the handler must return a list of ids, not {answer!r}")
    return [(str(entry_id), _OUTPUT_MISSING) for entry_id in answer]


@dataclass(frozen=True)
class HandlerTask(Shipped):
    """Runs the handler over the rows of a task; called by Spark with its Arrow batches."""

    step: Handler
    dead_letters: DeadLetterConfig
    form: str
    output: pa.Schema | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows that the handler has done, with its output."""
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
        columns = {name: batch.column(name).to_pylist() for name in _OF_A_MESSAGE if name in batch.schema.names}
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
        """Give up those whose output does not fit the columns, so that it harms no other row."""
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
            return ValueError(f"the output has no column {min(unknown)!r}")
        try:
            made = pa.RecordBatch.from_pylist([dict(output) for output in outputs], self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
            return error
        for column, known in zip(made.columns, self.output, strict=True):
            if column.null_count and not known.nullable:
                return ValueError(f"the output lacks the column {known.name!r}, which is NOT NULL")
        return None

    def _with_output(self, rows: Any, outputs: list[Mapping[str, Any]]) -> Any:
        if self.output is None:
            return rows
        added = pa.RecordBatch.from_pylist([dict(output) for output in outputs], self.output)
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *added.columns], schema=pa.schema([*rows.schema, *self.output])
        )


def is_repeated_task() -> bool:
    """Tell whether Spark has begun this task before: its last worker may have died of a message."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


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
