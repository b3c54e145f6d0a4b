"""The smallest pipelined Redis connection: a FIFO of futures, all writes of one loop tick joined into one."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, cast

import hiredis

Reply = Any


def command(*words: bytes) -> bytes:
    """Returns a command in the wire format."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class RespConnection(asyncio.Protocol):
    """A connection whose `send` returns a future at once; replies come back in the order of the sends."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._unwritten: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> RespConnection:
        """Opens a connection to the loopback server."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport and switches Nagle's algorithm off, which would hold small writes back."""
        # uvloop's transports are no subclass of asyncio's, so only a cast tells the type.
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Hands every complete reply to the oldest waiter."""
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        while waiting:
            reply = reader.gets()
            if reply is False:
                return
            future = waiting.popleft()
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def send(self, raw: bytes) -> asyncio.Future[Reply]:
        """Queues a command for the write at the end of this loop tick."""
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(raw)
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def close(self) -> None:
        """Closes the socket."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._unwritten))
        self._unwritten.clear()
