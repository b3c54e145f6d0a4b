"""Errors that no log could hold are written all the same."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.sync
import penstock.tasks
from penstock.errors import CommandTimeout, ConnectionLost
from penstock.logs import OutageLog


class Mute(Exception):
    def __str__(self) -> str:
        raise GeneratorExit


class Asking(logging.Handler):
    """As formatters of JSON do: it asks the error itself."""

    told = ""

    def emit(self, record: logging.LogRecord) -> None:
        assert record.exc_info is not None
        self.told = str(record.exc_info[1])


@pytest.mark.parametrize("error", [ValueError("\ud83d half of a pair"), Mute(), ValueError("x" * 10_000_000)])
def test_a_traceback_is_written_whatever_its_error_says(error: BaseException) -> None:
    raw = io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    logger = logging.getLogger("penstock.streams")
    asking = Asking()
    logger.addHandler(handler)
    logger.addHandler(asking)
    try:
        try:
            raise error
        except BaseException:
            logger.exception("the handler failed")
    finally:
        logger.removeHandler(handler)
        logger.removeHandler(asking)
    assert asking.told.encode()
    written = raw.getvalue().decode()
    assert len(written) < 10_000
    assert "the handler failed\nTraceback" in written
    assert f"{type(error).__name__}: " in written.rpartition("raise error\n")[2]


def test_every_logger_of_the_library_is_known() -> None:
    root = Path(penstock.__file__).parent
    wanted: set[str] = set()
    for file in root.rglob("*.py"):
        module = ".".join(("penstock", *file.relative_to(root).with_suffix("").parts))
        for name in re.findall(r'getLogger\((__name__|"penstock\.[^"]+")\)', file.read_text()):
            wanted.add(module if name == "__name__" else name.strip('"'))
    assert {name for name in wanted if not logging.getLogger(name).filters} == set()


@pytest.mark.parametrize("half", [penstock, penstock.sync], ids=["async", "sync"])
async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
    half: Any, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = half.StreamConsumer(
        half.StreamClient(), "orders", penstock.ConsumerConfig(group="g", worker_name="w"), message_handler=print
    )
    name = "consumer w of orders/g"
    answers = ["done", *[ConnectionLost("no answer")] * 4, CommandTimeout("too late"), ConnectionLost("no answer")]

    def step() -> Any:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def step_async() -> Any:
        return step()

    with caplog.at_level(logging.WARNING, "penstock.streams"):
        if half is penstock:
            assert await consumer._persist(step_async) == "done"
        else:
            assert await asyncio.to_thread(consumer._persist, step) == "done"
        assert re.sub(r"[\d.]+ s$", "n s", caplog.messages[-1]) == f"{name}: works again after n s"
        assert caplog.messages[:-1] == [f"{name}: no answer; retrying", f"{name}: too late; retrying"]
        answers += ["done", ConnectionLost("no answer")]
        await consumer._persist(step_async) if half is penstock else await asyncio.to_thread(consumer._persist, step)
        assert len(caplog.messages) == 5


def test_an_outage_whose_end_nobody_saw_is_not_part_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("penstock.logs.time.monotonic", lambda: now_s)
    outages = OutageLog(logging.getLogger("penstock.streams"), "w")
    outages.failed(ConnectionLost("no answer"))
    now_s += 3_600  # the consumer was stopped meanwhile
    outages.failed(ConnectionLost("no answer"))
    now_s += 2
    outages.succeeded()
    assert caplog.messages == ["w: no answer; retrying"] * 2 + ["w: works again after 2.0 s"]


async def test_a_task_worker_logs_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    handlers, queue = penstock.tasks.Handlers(), penstock.tasks.StubQueue("shop")
    handlers.task("print")(print)
    worker = penstock.tasks.Worker(queue, handlers, handle_signals=False)
    take, failures = queue.pop_many, 4

    async def pop_many(*args: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionLost("no answer")
        worker.stop()
        return await take(*args, **options)

    queue.pop_many = pop_many  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "penstock.tasks"):
        await worker.run()
    assert [re.sub(r"[\d.]+ s$", "n s", message) for message in caplog.messages] == [
        "worker of shop: no answer; retrying",
        "worker of shop: works again after n s",
    ]
