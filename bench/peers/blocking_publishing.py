"""How a blocking producer publishes one pass: one by one, from 50 threads, in bulk, or at a pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.peers import dialogue
from bench.peers.adapter import BlockingAdapter
from bench.peers.params import Mode
from bench.peers.payload import Message

CALLERS = 50


def serve(adapter: BlockingAdapter) -> None:
    """Publishes a pass at every order of the driver."""
    adapter.open()
    dialogue.ready()
    while (count := dialogue.next_count()) is not None:
        messages = dialogue.fresh_messages(count)
        started_at = time.perf_counter()
        late = _publish(adapter, messages)
        dialogue.done(started_at, late)


def _publish(adapter: BlockingAdapter, messages: list[Message]) -> int:
    mode: Mode = adapter.params.mode
    if mode == "paced":
        return _paced(adapter, messages)
    if mode == "bulk":
        for start in range(0, len(messages), adapter.bulk_size):
            adapter.publish_many(messages[start : start + adapter.bulk_size])
    elif mode == "fifty":
        _fifty(adapter, messages)
    else:
        for message in messages:
            adapter.publish(message)
    return 0


def _fifty(adapter: BlockingAdapter, messages: list[Message]) -> None:
    remaining, lock = iter(messages), threading.Lock()
    with ThreadPoolExecutor(CALLERS) as threads:
        for done in [threads.submit(_caller, adapter, remaining, lock) for _ in range(CALLERS)]:
            done.result()


def _caller(adapter: BlockingAdapter, remaining: Iterator[Message], lock: threading.Lock) -> None:
    while True:
        with lock:
            message = next(remaining, None)
        if message is None:
            return
        adapter.publish(message)


def _paced(adapter: BlockingAdapter, messages: list[Message]) -> int:
    step = 1 / adapter.params.rate
    start, late = time.perf_counter(), 0
    for number, message in enumerate(messages):
        delay = start + number * step - time.perf_counter()
        if delay > 0:
            time.sleep(delay)
        elif delay < -step:
            late += 1
        message["ts"] = time.time()
        adapter.publish(message)
    return late
