"""A worker process of the demo: `python -m penstock.cli.demo.worker URL NAME`. It ends when its standard input does."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

from penstock import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.cli.demo.orders import (
    CONCURRENCY,
    FATAL,
    GROUP,
    JOURNAL,
    LEASE_MS,
    MAX_DELIVERIES,
    POISON,
    RETRY_DELAY_MS,
    STREAM,
)
from penstock.cli.supervisor import at_end_of_parent
from penstock.errors import FatalError

_LONGEST_END_S = 8.0


async def work(url: str, name: str, over: threading.Event) -> None:
    """Handle orders until the demo closes our standard input, or is gone."""
    async with StreamClient.from_url(url) as client:
        journal = StreamProducer(client, JOURNAL, max_len=None)

        async def handle(message: StreamMessage) -> None:
            order = message.data
            await asyncio.sleep(order["work_ms"] / 1000)  # where a real handler would ask a bank or a database
            if order["kind"] == POISON:
                raise ValueError(f"order {order['order']} names an article that does not exist")
            if order["kind"] == FATAL:
                raise FatalError(f"order {order['order']} was cancelled by the customer")
            await journal.push({"entry": message.id, "worker": name})

        consumer = StreamConsumer(client, STREAM, _config(name), message_handler=handle)
        at_end_of_parent(lambda: _stop(consumer, over))
        await consumer.run()


def _config(name: str) -> ConsumerConfig:
    return ConsumerConfig(
        group=GROUP,
        worker_name=name,
        block_ms=500,
        concurrency=CONCURRENCY,
        min_idle_claim_ms=LEASE_MS,
        max_deliveries=MAX_DELIVERIES,
        retry_initial_delay_ms=RETRY_DELAY_MS,
        shutdown_grace_ms=2_000,
        retention_interval_ms=3_600_000,  # the audit wants to see every entry
    )


def _stop(consumer: StreamConsumer, over: threading.Event) -> None:
    consumer.stop()
    if not over.wait(_LONGEST_END_S):
        os._exit(1)  # the parent is gone: end abruptly rather than stay behind


def main() -> None:
    """Run the worker."""
    _, url, name = sys.argv
    # Handlers are meant to fail here, and dead letters record it: log crashes only.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    over = threading.Event()
    asyncio.run(work(url, name, over))
    over.set()


if __name__ == "__main__":
    main()
