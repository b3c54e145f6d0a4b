"""A worker process: handles messages as their bodies order, and prints what it does, one JSON object a line.

    python -m tests.faults.worker '{"url": ..., "stream": ..., "half": "async" or "sync", "style": "message" or "batch"}'

Every line is flushed before the next step, so that what a killed worker printed is what it did.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock import ConsumerConfig, StreamMessage, sync
from penstock.errors import FatalError, PenstockError, RetryLater, Snooze
from penstock.events import Event

_POLL_S = 0.01


@dataclass(frozen=True)
class Job:
    """What one worker process is told to do."""

    url: str
    stream: str
    half: str = "async"
    style: str = "message"
    is_plain: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)


def say(did: str, **facts: object) -> None:
    """Prints a line; the clock is that of the machine, the same for all processes."""
    line = json.dumps({"did": did, "at": time.monotonic(), "pid": os.getpid(), **facts}, default=str) + "\n"
    os.write(1, line.encode())  # one write, unbuffered: whole lines from any thread, even if we are killed next


def on_event(event: Event) -> None:
    say("event", name=event.name.value, **{key: value for key, value in event.fields.items() if key != "error"})


# --- what a body may order ------------------------------------------------------------------------


def until(path: str) -> None:
    while not os.access(path, os.F_OK):
        time.sleep(_POLL_S)


async def until_async(path: str) -> None:
    while not os.access(path, os.F_OK):  # noqa: ASYNC110 (another process opens the gate)
        await asyncio.sleep(_POLL_S)


def busy_until(path: str) -> None:
    """Computes without ever waiting: nothing else of this thread gets a turn."""
    while not os.access(path, os.F_OK):
        sum(range(1_000))


def is_first(path: str) -> bool:
    """Tells the first of all processes that it is."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def write_result(path: str) -> None:
    """Writes a result once: the first writer wins."""
    say("result", path=path, is_first=is_first(path))


def first(path: str, orders: list[list[Any]]) -> None:
    """Does what is ordered, but only in the run that comes here first."""
    if is_first(path):
        say("first", path=path)
        perform(orders)


async def first_async(path: str, orders: list[list[Any]]) -> None:
    if is_first(path):
        say("first", path=path)
        await perform_async(orders)


def fail(kind: str, text: str = "as ordered") -> None:
    errors = {"error": ValueError(text), "fatal": FatalError(text), "later": RetryLater(0.05), "snooze": Snooze(0.05)}
    raise errors[kind]


PLAIN: dict[str, Callable[..., Any]] = {
    "sleep": time.sleep,
    "first": first,
    "until": until,
    "busy until": busy_until,
    "result": write_result,
    "raise": fail,
    "exit": os._exit,
    "leave": sys.exit,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
ASYNC: dict[str, Callable[..., Any]] = {
    **PLAIN,
    "sleep": asyncio.sleep,
    "first": first_async,
    "until": until_async,
}


def perform(orders: list[list[Any]]) -> None:
    for name, *args in orders:
        PLAIN[name](*args)


async def perform_async(orders: list[list[Any]]) -> None:
    for name, *args in orders:
        result = ASYNC[name](*args)
        if inspect.isawaitable(result):
            await result


def orders(message: StreamMessage) -> list[list[Any]]:
    """Returns what the body orders for this run; `runs` limits it to the first so many."""
    data = message.data
    return data.get("do", []) if message.attempts <= data.get("runs", 1_000_000) else []


def about(message: StreamMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "n": message.data["n"],
        "sum": message.data["sum"],
        "pad": message.data["pad"],
        "attempts": message.attempts,
        "deliveries": message.delivery_count,
    }


class Handlers:
    """The handlers in all styles; each says when it begins, and how it ends."""

    def one(self, message: StreamMessage) -> None:
        say("began", **about(message))
        try:
            perform(orders(message))
        except Exception as error:
            say("failed", id=message.id, error=type(error).__name__)
            raise
        say("done", id=message.id, n=message.data["n"], lease_lost=message.lease_lost)

    async def one_async(self, message: StreamMessage) -> None:
        say("began", **about(message))
        try:
            await perform_async(orders(message))
        except asyncio.CancelledError:
            say("cancelled", id=message.id, lease_lost=message.lease_lost)
            raise
        except Exception as error:
            say("failed", id=message.id, error=type(error).__name__)
            raise
        say("done", id=message.id, n=message.data["n"], lease_lost=message.lease_lost)

    def many(self, messages: list[StreamMessage]) -> list[str]:
        say("batch", size=len(messages))
        for message in messages:
            self.one(message)
        return [message.id for message in messages]

    async def many_async(self, messages: list[StreamMessage]) -> list[str]:
        say("batch", size=len(messages))
        for message in messages:
            await self.one_async(message)
        return [message.id for message in messages]

    def of(self, job: Job) -> dict[str, Any]:
        """Returns the keyword arguments of a consumer."""
        is_plain = job.is_plain or job.half == "sync"
        if job.style == "batch":
            return {"handler": self.many if is_plain else self.many_async}
        return {"message_handler": self.one if is_plain else self.one_async}


# --- the two halves -------------------------------------------------------------------------------


def run_sync(job: Job) -> None:
    with sync.StreamClient.from_url(job.url, **job.client) as client:
        config = ConsumerConfig(**job.config)
        consumer = sync.StreamConsumer(client, job.stream, config, **Handlers().of(job), on_event=on_event)
        say("ready", name=consumer.worker_name)
        consumer.run()
        say("stopped", **vars_of(consumer.metrics()))


def tell_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()


async def run_async(job: Job) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, tell_tasks)
    async with penstock.StreamClient.from_url(job.url, **job.client) as client:
        config = ConsumerConfig(**job.config)
        consumer = penstock.StreamConsumer(client, job.stream, config, **Handlers().of(job), on_event=on_event)
        say("ready", name=consumer.worker_name)
        await consumer.run()
        say("stopped", **vars_of(consumer.metrics()))


def vars_of(metrics: Any) -> dict[str, Any]:
    return {name: getattr(metrics, name) for name in metrics.__slots__}


def end_with_the_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock would be held when the interpreter ends
    os._exit(1)


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # a worker that hangs tells where: its threads, and
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # its tasks, once it has an event loop
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    job = Job(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(threadName)s %(name)s %(message)s")
    threading.current_thread().name = "main"
    try:
        if job.half == "sync":
            run_sync(job)
        else:
            asyncio.run(run_async(job))
    except PenstockError as error:
        say("raised", error=type(error).__name__, text=str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
