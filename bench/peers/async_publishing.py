"""How an asynchronous producer publishes one pass: one by one, from 50 callers, in bulk, or at a pace."""

from __future__ import annotations

import asyncio
import time

from bench.peers import dialogue
from bench.peers.adapter import AsyncAdapter
from bench.peers.params import Mode
from bench.peers.payload import Message

CALLERS = 50


async def serve(adapter: AsyncAdapter) -> None:
    """Publishes a pass at every order of the driver."""
    await adapter.open()
    dialogue.ready()
    loop = asyncio.get_running_loop()
    # Waiting on a thread keeps the loop free for the peer's own background tasks between two passes.
    while (count := await loop.run_in_executor(None, dialogue.next_count)) is not None:
        messages = dialogue.fresh_messages(count)
        started_at = time.perf_counter()
        late = await _publish(adapter, messages)
        dialogue.done(started_at, late)
    await adapter.close()


async def _publish(adapter: AsyncAdapter, messages: list[Message]) -> int:
    mode: Mode = adapter.params.mode
    if mode == "paced":
        return await _paced(adapter, messages)
    if mode == "bulk":
        await _bulk(adapter, messages)
    elif mode == "fifty":
        await _fifty(adapter, messages)
    else:
        for message in messages:
            await adapter.publish(message)
    return 0


async def _fifty(adapter: AsyncAdapter, messages: list[Message]) -> None:
    remaining = iter(messages)

    async def caller() -> None:
        for message in remaining:
            await adapter.publish(message)

    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(caller())


async def _bulk(adapter: AsyncAdapter, messages: list[Message]) -> None:
    for start in range(0, len(messages), adapter.bulk_size):
        await adapter.publish_many(messages[start : start + adapter.bulk_size])


async def _paced(adapter: AsyncAdapter, messages: list[Message]) -> int:
    step = 1 / adapter.params.rate
    start, late = time.perf_counter(), 0
    for number, message in enumerate(messages):
        delay = start + number * step - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        elif delay < -step:
            late += 1
        message["ts"] = time.time()
        await adapter.publish(message)
    return late
