"""`penstock bench`: how fast this machine and its server are together, measured on keys of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.cli.command import Server
from penstock.cli.options import AsJson, duration
from penstock.cli.shown import Columns, print_rows, say
from penstock.redis.retry import Repeat

_TOGETHER = 200  # messages that are pushed at the same time
_GROUP = "bench"
_ROUND_TRIPS = 2_000
_EXPIRES_S = 3_600  # should the command be killed before it removes its keys


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement; times are those of single round trips, and None where only the whole was measured."""

    what: str
    count: int
    per_s: float
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @classmethod
    def of(cls, what: str, took_s: float, times_s: Sequence[float]) -> Measured:
        """Return the rate and the percentiles of times."""
        ordered = sorted(times_s)
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.95, 0.99, 1.0)]
        return cls(what, len(ordered), len(ordered) / took_s, *at)


_MEASURED: Columns = {
    "measurement": "what",
    "count": "count",
    "per second": lambda each: round(each.per_s),
    **{
        f"{name} ms": lambda each, name=name: _milliseconds(getattr(each, f"{name}_ms"))  # type: ignore[misc]
        for name in ("p50", "p95", "p99", "max")
    },
}


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def bench(
    server: Server,
    messages: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Maximum number of messages to publish.")
    ] = 20_000,
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Size of a message in bytes.")] = 200,
    limit: Annotated[float, duration("Maximum duration of each measurement.", "--for", default="3s")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Measure round trips, publishing, handling and the latency of single messages on this server.

    It uses a temporary stream and removes it afterwards. Other clients of the server are slowed down while it runs.
    """
    say(f"measuring for up to {4 * limit:.0f} s ...")
    rows = asyncio.run(_measure(server.url, messages, "x" * size, limit))
    print_rows(rows, _MEASURED, as_json=as_json)


async def _measure(url: str, messages: int, text: str, limit_s: float) -> list[Measured]:
    stream = f"penstock-bench-{secrets.token_hex(6)}"
    async with StreamClient.from_url(url) as client:
        trips = await _round_trips(client, limit_s)
        async with _removed_afterwards(client, stream):
            producer = StreamProducer(client, stream)
            await producer.ensure_group(_GROUP)
            await client.call(stream, "EXPIRE", stream, _EXPIRES_S, repeat=Repeat.IDEMPOTENT)
            published = await _publish(producer, messages, text, limit_s)
            handled = await _handle(client, stream, published.count, limit_s)
            single = await _single_messages(client, stream, producer, text, limit_s)
            await producer.close()
    return [trips, published, handled, single]


@asynccontextmanager
async def _removed_afterwards(client: StreamClient, stream: str) -> AsyncIterator[None]:
    try:
        yield
    finally:
        cursor, found = b"", list[bytes]()
        while cursor != b"0":  # all keys of a stream share its slot, so one node has them
            cursor, found = await client.call(stream, "SCAN", cursor or b"0", "MATCH", f"*{stream}*", "COUNT", 1_000)
            if found:
                await client.call(stream, "DEL", *found, repeat=Repeat.IDEMPOTENT)


async def _round_trips(client: StreamClient, limit_s: float) -> Measured:
    times_s, began_s = list[float](), time.perf_counter()
    while len(times_s) < _ROUND_TRIPS and time.perf_counter() - began_s < limit_s:
        sent_s = time.perf_counter()
        await client.ping()
        times_s.append(time.perf_counter() - sent_s)
    return Measured.of("round trip (PING)", time.perf_counter() - began_s, times_s)


async def _publish(producer: StreamProducer, messages: int, text: str, limit_s: float) -> Measured:
    times_s, began_s = list[float](), time.perf_counter()

    async def push() -> None:
        sent_s = time.perf_counter()
        await producer.push({"text": text})
        times_s.append(time.perf_counter() - sent_s)

    while len(times_s) < messages and time.perf_counter() - began_s < limit_s:
        await asyncio.gather(*(push() for _ in range(min(_TOGETHER, messages - len(times_s)))))
    return Measured.of(f"publish, {_TOGETHER} at a time", time.perf_counter() - began_s, times_s)


async def _handle(client: StreamClient, stream: str, messages: int, limit_s: float) -> Measured:
    handled, enough = 0, asyncio.Event()

    async def handle(_: StreamMessage) -> None:
        nonlocal handled
        handled += 1
        if handled >= messages:
            enough.set()

    began_s = time.perf_counter()
    async with _consuming(client, stream, handle):
        await _until(enough, limit_s)
        took_s, count = time.perf_counter() - began_s, handled
    return Measured("handle and acknowledge", count, count / took_s)


async def _single_messages(
    client: StreamClient, stream: str, producer: StreamProducer, text: str, limit_s: float
) -> Measured:
    arrived, times_s = asyncio.Event(), list[float]()

    async def handle(message: StreamMessage) -> None:
        if message.data.get("is_single"):
            arrived.set()

    async with _consuming(client, stream, handle):
        began_s = sent_s = time.perf_counter()
        while len(times_s) <= _ROUND_TRIPS and sent_s - began_s < limit_s:
            arrived.clear()
            await producer.push({"text": text, "is_single": True})
            await arrived.wait()
            times_s.append(time.perf_counter() - sent_s)
            sent_s = time.perf_counter()
    # The first one has waited for the consumer to start.
    return Measured.of("single messages, publish to handler", sum(times_s[1:]) or 1.0, times_s[1:] or times_s)


@asynccontextmanager
async def _consuming(client: StreamClient, stream: str, handle: object) -> AsyncIterator[None]:
    config = ConsumerConfig(group=_GROUP, batch_size=500, handle_signals=False)
    consumer = StreamConsumer(client, stream, config, message_handler=handle)  # type: ignore[arg-type]
    run = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        consumer.stop()
        await run
        await consumer.close()


async def _until(event: asyncio.Event, limit_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), limit_s)
