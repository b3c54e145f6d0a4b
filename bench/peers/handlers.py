"""The handlers every peer runs: they count the message and do nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from bench.peers.params import Params
from bench.peers.payload import Message
from bench.probe import Probe

AsyncHandler = Callable[[Message], Awaitable[None]]
PlainHandler = Callable[[Message], None]


def async_handler(params: Params) -> AsyncHandler:
    """Returns a coroutine function of one message."""
    probe = Probe(params.probe)

    async def count(_message: Message) -> None:
        probe.hit()

    async def stamp(message: Message) -> None:
        probe.stamp(message["ts"])
        probe.hit()

    async def hold(_message: Message) -> None:
        probe.hit()
        await asyncio.Event().wait()

    return hold if params.holds else stamp if params.stamps else count


def plain_handler(params: Params) -> PlainHandler:
    """Returns a function of one message that may be called from any thread."""
    probe = Probe(params.probe)

    def count(_message: Message) -> None:
        probe.hit_from_any_thread()

    def stamp(message: Message) -> None:
        probe.stamp(message["ts"])
        probe.hit_from_any_thread()

    def hold(_message: Message) -> None:
        probe.hit_from_any_thread()
        threading.Event().wait()

    return hold if params.holds else stamp if params.stamps else count
