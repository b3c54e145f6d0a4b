"""What tasks do. One hands messages to the handler and saves results, leaving out messages that have one.

| killed                              | what is left                    | the next run                              |
|-------------------------------------|---------------------------------|-------------------------------------------|
| before the handler is called        | nothing of these messages       | handles them                              |
| after it, before results are saved  | what the handler did            | handles them again, as a worker would     |
| while results are saved             | the results of some of them     | handles the others; those stay as they are|
| after that                          | all results                     | finds them, and handles nothing           |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.dead_letter_record import traceback_of
from penstock.errors import (
    ConfigurationError,
    DecodeError,
    EncodeError,
    HandlerTimeout,
    NotAuthentic,
    summary_of,
)
from penstock.keys import check_name
from penstock.model import StreamMessage
from penstock.number_checks import check_number
from penstock.redis.retry import Repeat
from penstock.serializers import load_serializer
from penstock.settings import ResultBackendSettings
from penstock.spark.pipeline.caller import Alone, Caller, Outcome, is_repeated_task
from penstock.spark.pipeline.dead_letters import Failure
from penstock.spark.pipeline.steps import check_function_path, check_timeout, imported
from penstock.spark.reprocess.store import (
    ReprocessResults,
    StuckNotes,
    check_mark,
    check_run_name,
    must_stop,
    result_id,
)
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.link import Link, retry
from penstock.task import Result, Status, encode

FORMS = ("json", "msgpack", "raw")
_TEXT = pa.string()
OUTCOME = pa.schema([("is_done", pa.bool_()), ("is_new", pa.bool_()), ("error", _TEXT), ("text", _TEXT), ("id", _TEXT)])
OUTCOME_DDL = "is_done boolean, is_new boolean, error string, text string, id string"
PURGED = pa.schema([("purged", pa.int64())])
PURGED_DDL = "purged bigint"
_MOST_TEXT = 2_000
_PURGED_AT_ONCE = 500


@dataclass(frozen=True)
class Work:
    """What is done with each message, and where its result goes."""

    handler: str
    results: ResultBackendSettings
    form: str = "json"
    batch_size: int = 100
    max_attempts: int = 3
    name: str | None = None
    timeout: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_function_path("--handler", self.handler)
        for option, number in (("--batch-size", self.batch_size), ("--max-attempts", self.max_attempts)):
            check_number(option, number)
        if self.form not in FORMS:
            raise ConfigurationError(f"--payload {self.form!r} must be one of {', '.join(FORMS)}")
        if self.name is not None:
            check_run_name(self.name)
        if self.timeout is not None:
            check_timeout("--timeout", self.timeout)

    @property
    def timeout_s(self) -> float | None:
        """How long a call of the handler may take, in seconds."""
        return None if self.timeout is None else check_timeout("--timeout", self.timeout)


@dataclass(frozen=True)
class _Row:
    """A message on its way."""

    result: str  # the id of its result
    stream: str
    id: str
    kind: str
    data: bytes | None
    key: str | None
    headers: Mapping[str, str]
    message_id: str | None
    refused: str | None = None  # why its payload is not authentic


@dataclass(frozen=True)
class ReprocessTask(Shipped):
    """Called by Spark with the Arrow batches of a task."""

    work: Work
    keeps_failures: bool
    handled: Any = None  # an accumulator of the number of messages
    mark: str | None = None  # the driver's file, in the folder of the results
    stuck: StuckNotes | None = None  # where failures are no results

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what became of each message."""
        freeze_gc()
        check_mark(self.mark)
        function = imported("--handler", self.work.handler)
        is_repeated = is_repeated_task()
        caller = Caller(function, self.work.max_attempts, has_output=None, timeout_s=self.work.timeout_s)
        # With several messages in a call, it would be unknown which one hangs.
        alone = nullcontext if is_repeated and self.work.timeout_s is not None else None
        stuck = self.stuck.known() if self.stuck is not None and is_repeated else frozenset()
        store = ReprocessResults(self.work.results)
        size = self.work.batch_size
        try:
            for batch in batches:
                for first in range(0, batch.num_rows, size):
                    if must_stop(self.mark):
                        return
                    rows = [_row(each, self.work.name) for each in batch.slice(first, size).to_pylist()]
                    yield pa.RecordBatch.from_pylist(_Chunk(self, caller, store, stuck, alone).handled(rows), OUTCOME)
                    if self.handled is not None:
                        self.handled.add(len(rows))
        finally:
            caller.close()
            store.close()


class _Chunk:
    """Some messages that are handled and saved together."""

    def __init__(
        self, task: ReprocessTask, caller: Caller, store: ReprocessResults, stuck: frozenset[str], alone: Alone | None
    ) -> None:
        self._task, self._caller, self._store, self._stuck, self._alone = task, caller, store, stuck, alone
        form = task.work.form
        self._decode: Callable[[bytes], Any] = bytes if form == "raw" else load_serializer(form).decode

    def handled(self, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        """Handle what has no result yet; return what became of each row."""
        known = self._store.find(row.result for row in rows)
        waiting: dict[str, _Row] = {}
        for row in rows:
            if row.result not in known:
                waiting.setdefault(row.result, row)  # of two rows of one message, the first is handled
        made: dict[str, Result] = {}
        for stream in dict.fromkeys(row.stream for row in waiting.values()):
            made |= self._of_stream([row for row in waiting.values() if row.stream == stream])
        kept = [result for result in made.values() if self._task.keeps_failures or result.status != Status.ERROR]
        known |= self._store.save(kept)  # another process was faster, and its result counts
        return [
            _outcome(
                row,
                known.get(row.result) or made[row.result],
                is_new=row.result not in known and waiting[row.result] is row,
            )
            for row in rows
        ]

    def _of_stream(self, rows: Sequence[_Row]) -> dict[str, Result]:
        """Run the handler over messages of one stream, whose ids differ."""
        made: dict[str, Result] = {}
        messages: dict[str, tuple[_Row, StreamMessage]] = {}
        started = datetime.now(UTC)
        for row in rows:
            if row.result in self._stuck:
                made[row.result] = _failed(row, HandlerTimeout("handler could not be interrupted"), 1, started)
                continue
            try:
                message = self._message(row)
            except DecodeError as error:
                made[row.result] = _failed(row, error, 1, started)
                continue
            messages[row.id] = (row, message)
        waiting = [message for _, message in messages.values()]

        def give_up(entry_id: str, failure: Failure) -> None:
            self._give_up(_failed(messages[entry_id][0], failure.error, failure.attempts, started))

        outcome = self._caller.handle(waiting, give_up, self._alone) if waiting else Outcome()
        for entry_id, (row, message) in messages.items():
            failure = outcome.failed.get(entry_id)
            if failure is not None:
                made[row.result] = _failed(row, failure.error, failure.attempts, started)
            else:
                made[row.result] = _done(row, outcome.done[entry_id], message.attempts, started)
        for row in rows:
            if row.result not in made:  # a second message with the id of the entry, and another id of its own
                made |= self._of_stream([row])
        return made

    def _give_up(self, result: Result) -> None:
        """Note a message that this process ends with, so that the repeated task leaves it alone."""
        if self._task.keeps_failures:
            self._store.save([result])
        elif self._task.stuck is not None:
            self._task.stuck.note(result.task_id)

    def _message(self, row: _Row) -> StreamMessage:
        if row.refused is not None:
            raise NotAuthentic(row.refused)
        if row.data is None:
            raise DecodeError("the message has no payload")
        return StreamMessage(
            id=row.id, data=self._decode(row.data), delivery_count=1, attempts=1, stream=row.stream, key=row.key,
            headers=row.headers, message_id=row.message_id,
        )  # fmt: skip


def _row(columns: Mapping[str, Any], name: str | None) -> _Row:
    stream, entry_id = columns["stream"], columns["id"]
    return _Row(
        result=result_id(name, columns["message_id"], stream, entry_id),
        stream=stream,
        id=entry_id,
        kind=_kind(columns["kind"], stream),
        data=columns["data"],
        key=columns["key"],
        headers=dict(columns["headers"] or ()),
        message_id=columns["message_id"],
        refused=columns["refused"],
    )


def _kind(given: str | None, stream: str) -> str:
    try:
        return check_name("kind", given or stream)
    except ConfigurationError:
        return stream


def _done(row: _Row, output: Any, attempts: int, started: datetime) -> Result:
    result = Result(task_id=row.result, kind=row.kind, data=output, attempts=attempts, started_at=started)
    try:
        encode(result)
    except EncodeError as error:
        return _failed(row, error, attempts, started)
    return result


def _failed(row: _Row, error: BaseException | None, attempts: int, started: datetime) -> Result:
    text = "" if error is None else summary_of(error)
    return Result(
        task_id=row.result, kind=row.kind, status=Status.ERROR, error=text[:_MOST_TEXT], attempts=attempts,
        started_at=started, traceback=traceback_of(error) or None,
    )  # fmt: skip


def _outcome(row: _Row, result: Result, *, is_new: bool) -> dict[str, Any]:
    is_done = result.status != Status.ERROR
    error, _, text = ("", "", "") if is_done else (result.error or "").partition(": ")
    return {"is_done": is_done, "is_new": is_new, "error": error, "text": text, "id": row.id}


# --- the dead letters that are done ---------------------------------------------------------------


@dataclass(frozen=True)
class PurgeTask(Shipped):
    """Called by Spark with dead letters, when the results of all of them are saved.

    A second pass, by the results alone: whatever was killed or repeated in the first, what is deleted has its result.
    """

    link: Link
    key: str
    results: ResultBackendSettings
    name: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield how many were deleted."""
        store = ReprocessResults(self.results)
        try:
            for batch in batches:
                for first in range(0, batch.num_rows, _PURGED_AT_ONCE):
                    letters = self._finished(store, batch.slice(first, _PURGED_AT_ONCE))
                    yield pa.RecordBatch.from_pylist([{"purged": self._delete(letters)}], PURGED)
        finally:
            store.close()

    def _finished(self, store: ReprocessResults, batch: pa.RecordBatch) -> list[str]:
        by_letter = {
            row["letter"]: result_id(self.name, row["message_id"], row["stream"], row["id"])
            for row in batch.to_pylist()
        }
        found = store.find(by_letter.values())
        return [letter for letter, known in by_letter.items() if known in found and found[known].status != Status.ERROR]

    def _delete(self, letters: list[str]) -> int:
        if not letters:
            return 0
        client = self.link.client()
        key = client.keys(self.key).stream
        words = ("XDEL", key, *letters)
        return int(retry(lambda: client.call(key, *words, repeat=Repeat.IDEMPOTENT), what="purging"))
