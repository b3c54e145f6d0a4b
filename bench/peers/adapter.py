"""What the module of a peer implements: a producer's four verbs and a worker that runs until it is killed.

A module binds its class (or a function of the params that returns one) to the name `ADAPTER`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from bench.peers.params import Params
from bench.peers.payload import Message


class Adapter:
    """The part that asynchronous and blocking peers have in common."""

    bulk_size: ClassVar[int] = 100
    """Messages a call of `publish_many`."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def work(self) -> None:
        """Handles messages until the process is killed."""
        raise NotImplementedError


class AsyncAdapter(Adapter):
    """A peer with an asyncio producer."""

    uses_uvloop: ClassVar[bool] = False
    """Only where the peer's documentation asks for it; Penstock and the limit both run on it."""

    async def open(self) -> None:
        """Connects the producer and makes sure that the queue exists."""

    async def close(self) -> None:
        """Disconnects the producer."""

    async def publish(self, message: Message) -> None:
        """Publishes one message and waits until the server has it."""
        raise NotImplementedError

    async def publish_many(self, messages: list[Message]) -> None:
        """Publishes a batch in the quickest way the peer documents."""
        raise NotImplementedError

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine on the event loop of this peer."""
        if self.uses_uvloop:
            import uvloop

            uvloop.run(main)
        else:
            asyncio.run(main)


class BlockingAdapter(Adapter):
    """A peer with a blocking producer."""

    def open(self) -> None:
        """Connects the producer and makes sure that the queue exists."""

    def publish(self, message: Message) -> None:
        """Publishes one message and waits until the server has it."""
        raise NotImplementedError

    def publish_many(self, messages: list[Message]) -> None:
        """Publishes a batch in the quickest way the peer documents."""
        raise NotImplementedError
