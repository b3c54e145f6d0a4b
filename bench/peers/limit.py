"""The practical limit of Python: a hand-written loop over Redis Streams, with no safety at all.

It does the same job as the peers (JSON in, await a handler for each message, acknowledge) on a connection of its
own, uvloop and msgspec, reads 1,000 entries at a time and has the next read in flight while it handles a batch.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

import hiredis
import msgspec

from bench.peers.adapter import AsyncAdapter
from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM
from bench.peers.payload import Message
from bench.peers.resp import Reply, RespConnection, command

_STREAM, _GROUP = STREAM.encode(), GROUP.encode()
_READ_COUNT = b"1000"
_BLOCK_MS = b"2000"
# Everything of an XADD but the payload, so that a publish formats nothing else.
_XADD_HEAD = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$4\r\ndata\r\n" % (len(_STREAM), _STREAM)

# msgspec and not orjson: it is as fast on these messages and Penstock itself depends on it.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Limit(AsyncAdapter):
    """Publishes and drains as fast as one Python process can."""

    uses_uvloop = True

    async def open(self) -> None:
        """Connects and creates the group."""
        self._connection = await RespConnection.connect(self.params.port)
        try:
            await self._connection.send(command(b"XGROUP", b"CREATE", _STREAM, _GROUP, b"0", b"MKSTREAM"))
        except hiredis.ReplyError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def close(self) -> None:
        """Disconnects."""
        self._connection.close()

    async def publish(self, message: Message) -> None:
        """Sends one XADD; those of other callers in the same loop tick share its write."""
        await self._xadd(message)

    async def publish_many(self, messages: list[Message]) -> None:
        """Sends one XADD a message in one write."""
        replies = [self._xadd(message) for message in messages]
        await replies[-1]
        for reply in replies:
            reply.result()

    def work(self) -> None:
        """Drains the stream until the process is killed."""
        self.run(self._drain())

    def _xadd(self, message: Message) -> asyncio.Future[Reply]:
        data = _encode(message)
        return self._connection.send(b"%b$%d\r\n%b\r\n" % (_XADD_HEAD, len(data), data))

    async def _drain(self) -> None:
        handle = async_handler(self.params)
        await self.open()
        # Acks go over a connection of their own: behind a blocking read they would wait for it.
        reading = await RespConnection.connect(self.params.port)
        consumer = b"limit-%d" % os.getpid()
        read = partial(
            reading.send,
            command(
                *(b"XREADGROUP", b"GROUP", _GROUP, consumer, b"COUNT", _READ_COUNT),
                *(b"BLOCK", _BLOCK_MS, b"STREAMS", _STREAM, b">"),
            ),
        )
        pending = read()
        while True:
            reply = await pending
            pending = read()
            await asyncio.sleep(0)  # lets the read leave before the batch occupies the loop
            if not reply:
                continue
            ids = []
            for entry_id, fields in reply[0][1]:
                await handle(_decode(fields[1]))
                ids.append(entry_id)
            self._connection.send(command(b"XACK", _STREAM, _GROUP, *ids)).add_done_callback(_raise_failure)


def _raise_failure(reply: asyncio.Future[Reply]) -> None:
    reply.result()


ADAPTER = Limit
