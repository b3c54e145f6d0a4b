"""What the answers of a handler mean; without Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from penstock import StreamMessage
from penstock.errors import ConfigurationError, FatalError, Snooze
from penstock.policy import Reason
from penstock.spark.pipeline.caller import Caller, NotDone, Outcome
from penstock.spark.pipeline.dead_letters import DeadLetterConfig
from penstock.spark.pipeline.handling import HandlerTask
from penstock.spark.pipeline.sinks.delta import partition_values
from penstock.spark.pipeline.steps import Handler


def messages(count: int) -> list[StreamMessage]:
    return [StreamMessage(id=f"{n}-0", data=n, attempts=1, delivery_count=1) for n in range(count)]


def handled(function: Any, count: int = 3, *, attempts: int = 3, has_output: bool = False) -> Outcome:
    with closing(Caller(function, attempts, has_output=has_output)) as caller:
        return caller.handle(messages(count))


def test_a_handler_that_does_all_is_called_once() -> None:
    calls: list[int] = []

    def handle(given: list[StreamMessage]) -> list[str]:
        calls.append(len(given))
        return [message.id for message in given]

    assert set(handled(handle).done) == {"0-0", "1-0", "2-0"}
    assert calls == [3]


def test_only_the_message_that_fails_is_given_up() -> None:
    seen: list[tuple[int, int]] = []

    def handle(given: list[StreamMessage]) -> list[str]:
        for message in given:
            seen.append((message.data, message.attempts))
            if message.data == 1:
                raise ValueError("one")
        return [message.id for message in given]

    outcome = handled(handle)
    assert set(outcome.done) == {"0-0", "2-0"}
    assert outcome.failed["1-0"].reason is Reason.MAX_DELIVERIES
    assert outcome.failed["1-0"].attempts == 3
    assert [attempt for data, attempt in seen if data == 1] == [1, 2, 3]


class Odd(BaseException):
    """One of the few errors that are no Exception, and that cannot be shown."""

    def __str__(self) -> str:
        raise SystemExit(4)


def leave() -> NoReturn:
    sys.exit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt("by hand")


def cancel() -> NoReturn:
    raise asyncio.CancelledError


def odd() -> NoReturn:
    raise Odd


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("end", [leave, interrupt, cancel, odd])
def test_a_handler_that_wants_to_end_its_process_fails_for_its_message_alone(
    end: Callable[[], NoReturn], is_async: bool
) -> None:
    def plain(given: list[StreamMessage]) -> list[str]:
        if any(message.data == 1 for message in given):
            end()
        return [message.id for message in given]

    async def later(given: list[StreamMessage]) -> list[str]:
        await asyncio.sleep(0)
        return plain(given)

    outcome = handled(later if is_async else plain)
    assert set(outcome.done) == {"0-0", "2-0"}
    failure = outcome.failed["1-0"]
    assert (failure.reason, failure.attempts) == (Reason.MAX_DELIVERIES, 3)
    assert isinstance(failure.error, SystemExit | KeyboardInterrupt | asyncio.CancelledError | Odd)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_signal_that_strikes_a_handler_is_not_its_failure(is_async: bool) -> None:
    calls: list[int] = []

    def plain(given: list[StreamMessage]) -> list[str]:
        calls.append(len(given))
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1_000_000):
            pass
        return [message.id for message in given]

    async def later(given: list[StreamMessage]) -> list[str]:
        plain(given)
        await asyncio.Event().wait()
        return []

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which workers have, and drivers have not
    try:
        with pytest.raises(KeyboardInterrupt):
            handled(later if is_async else plain)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [3]


def test_what_waits_in_the_loop_of_an_async_handler_outlives_one_that_exits() -> None:
    kept: list[asyncio.Task[None]] = []

    async def handle(given: list[StreamMessage]) -> list[str]:
        if not kept:
            kept.append(asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]
            sys.exit(3)
        assert kept[0].get_loop() is asyncio.get_running_loop()
        return [message.id for message in given]

    assert set(handled(handle).done) == {"0-0", "1-0", "2-0"}


def test_a_fatal_error_is_not_tried_again() -> None:
    calls: list[int] = []

    def handle(given: list[StreamMessage]) -> list[str]:
        calls.append(1)
        raise FatalError("no")

    assert handled(handle, 1).failed["0-0"].reason is Reason.FATAL
    assert calls == [1]


def test_a_message_that_is_never_done_or_always_put_off_is_given_up() -> None:
    assert isinstance(handled(lambda _: [], 1).failed["0-0"].error, NotDone)
    assert isinstance(handled(lambda _: None, 1).failed["0-0"].error, NotDone)

    def later(given: list[StreamMessage]) -> list[str]:
        raise Snooze(5)

    assert handled(later, 1).failed["0-0"].reason is Reason.MAX_DELIVERIES


def test_ids_that_nobody_asked_for_change_nothing() -> None:
    assert set(handled(lambda given: [*(m.id for m in given), "9-9"]).done) == {"0-0", "1-0", "2-0"}


@pytest.mark.parametrize("answer", ["0-0", 3, b"x"])
def test_an_answer_that_is_no_list_of_ids_ends_the_pipeline(answer: object) -> None:
    with pytest.raises(ConfigurationError, match="must return a list of message ids"):
        handled(lambda _: answer)


def test_a_generator_that_raises_is_a_failed_attempt() -> None:
    def handle(given: list[StreamMessage]) -> Iterator[str]:
        for message in given:
            if message.data == 1:
                raise ValueError("no price")
            yield message.id

    outcome = handled(handle)
    assert set(outcome.done) == {"0-0", "2-0"}
    assert outcome.failed["1-0"].attempts == 3


def test_a_step_with_an_output_wants_a_mapping() -> None:
    with pytest.raises(ConfigurationError, match="must return a mapping of ids"):
        handled(lambda given: [m.id for m in given], has_output=True)


def test_only_the_output_that_does_not_fit_is_given_up() -> None:
    output = pa.schema([pa.field("score", pa.float64(), nullable=False)])
    task = HandlerTask(Handler("a:b"), DeadLetterConfig(None, "p", ""), "json", output)  # type: ignore[arg-type]
    answers = {"0-0": {"score": 1.0}, "1-0": {"score": "x"}, "2-0": {}, "3-0": {"scare": 1.0}}
    outcome = Outcome(done=dict(answers))
    task._check_outputs(outcome, {message.id: message for message in messages(4)})
    assert set(outcome.done) == {"0-0"}
    assert {failure.reason for failure in outcome.failed.values()} == {Reason.INVALID}
    assert "an unknown column 'scare'" in str(outcome.failed["3-0"].error)
    assert "has no value for column 'score'" in str(outcome.failed["2-0"].error)


def test_folders_name_the_values_of_partitions() -> None:
    assert partition_values("day=a%3Ab/n=__HIVE_DEFAULT_PARTITION__/f.parquet") == {"day": "a:b", "n": None}
    assert partition_values("f.parquet") == {}
