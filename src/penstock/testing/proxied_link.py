"""One client connection through the fault proxy, and the connection to the server behind it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable

from penstock.redis.probe import SocketAddress
from penstock.testing.faults import Ending, Fault, FaultBoard
from penstock.testing.resp_frames import NotResp, RespFrames, words_of

# After these a connection gets messages that answer no request, so that replies can no longer be counted.
_UNSOLICITED = {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR", b"SYNC", b"PSYNC"}
_PUSH = ord(">")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Side(asyncio.Protocol):
    """One of the two sockets of a link."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._on_data = on_data
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio gives it)
        self._on_end()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is not None:
            raw: socket.socket | None = self.transport.get_extra_info("socket")
            if raw is not None and not self.transport.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class _ClientSide(_Side):
    """The client's socket, which is read only when the server's is there."""

    def __init__(self, link: ProxiedLink) -> None:
        super().__init__(link.on_request_bytes, link.on_client_gone)
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.on_client()


class ProxiedLink:
    """Forwards whole requests and whole replies in order, and matches them, until a fault ends it."""

    def __init__(
        self,
        target: SocketAddress,
        board: FaultBoard,
        on_begin: Callable[[ProxiedLink], None],
        on_end: Callable[[ProxiedLink], None],
    ) -> None:
        self._target = target
        self._board = board
        self._on_begin, self._on_end = on_begin, on_end
        self._loop = asyncio.get_running_loop()
        self.client = _ClientSide(self)
        self._server = _Side(self._on_reply_bytes, self._on_server_gone)
        self._requests = RespFrames()
        self._replies = RespFrames()
        self._expected: deque[Fault | None] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._is_transparent = False
        self._drops_bytes = board.is_black_hole
        self._late: list[bytes] | None = None  # a request that is under way for long, and those that came behind it
        self._is_client_gone = False
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._held_back: list[Callable[[], None]] = []

    def drop_bytes(self) -> None:
        """Swallows everything from now on; both sockets stay open."""
        self._drops_bytes = True

    def release(self) -> None:
        """Does what was held back, in its order."""
        held_back, self._held_back = self._held_back, []
        for act in held_back:
            self._in_time(act)

    def end(self, ending: Ending) -> None:
        """Ends the link in the given way."""
        if ending == "black_hole":
            self.drop_bytes()
        elif ending == "reset":
            self.client.reset()
        else:
            self.client.close()

    # --- from the client --------------------------------------------------------------------------

    def on_client(self) -> None:
        """Goes to the server for the client that has come."""
        self._on_begin(self)
        if not self._drops_bytes:
            assert self.client.transport is not None
            self.client.transport.pause_reading()
            self._connecting = self._loop.create_task(self._connect())

    def on_client_gone(self) -> None:
        """Follows the client."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._is_client_gone = True
        if self._late is None:
            self._server.close()
        self._on_end(self)

    def on_request_bytes(self, received: bytes) -> None:
        """Forwards the requests that are whole, up to one that is to be lost."""
        if self._drops_bytes:
            return
        if self._is_transparent:
            self._server.write(self._requests.rest() + received)
            return
        try:
            for request in self._requests.feed(received):
                if self._drops_bytes:
                    return
                self._on_request(request)
        except NotResp:
            self._is_transparent = True
            self._server.write(self._requests.rest())

    def _on_request(self, request: bytes) -> None:
        if self._late is not None:
            self._late.append(request)
            return
        words = words_of(request)
        fault = self._board.judge(words) if words else None
        if fault is not None and fault.loses == "request":
            self._lose(fault)
            return
        if fault is not None and fault.late_s:
            self._late = [request]
            self._loop.call_later(fault.late_s, self._arrive, fault)
            return
        self._expected.append(fault)
        self._is_transparent = self._is_transparent or not words or words[0].upper() in _UNSOLICITED
        self._server.write(request)

    def _arrive(self, fault: Fault) -> None:
        late, self._late = self._late or [], None
        for request in late:
            self._on_request(request)
        if self._is_client_gone:
            self._server.close()
        fault.happen()

    # --- from the server --------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            if isinstance(self._target, tuple):
                await self._loop.create_connection(lambda: self._server, *self._target)
            else:
                await self._loop.create_unix_connection(lambda: self._server, self._target)
        except OSError:
            self.client.close()
        else:
            if self.client.transport is not None:
                self.client.transport.resume_reading()

    def _on_server_gone(self) -> None:
        if not self._drops_bytes:  # behind a dead router the client does not learn it
            self._in_time(self.client.close)

    def _on_reply_bytes(self, received: bytes) -> None:
        if self._drops_bytes:
            return
        if self._is_transparent:
            self._forward(self._replies.rest() + received)
            return
        whole = bytearray()
        for reply in self._replies.feed(received):
            fault = self._expected.popleft() if reply[0] != _PUSH and self._expected else None
            if fault is not None:
                self._forward(bytes(whole + (reply[: len(reply) // 2] if fault.loses == "half" else b"")))
                self._in_time(lambda fault=fault: self._lose(fault))  # type: ignore[misc]
                return
            whole += reply
        self._forward(bytes(whole))

    def _forward(self, replies: bytes) -> None:
        if replies:
            self._in_time(lambda: None if self._drops_bytes else self.client.write(replies))

    def _lose(self, fault: Fault) -> None:
        self.drop_bytes()  # nothing that comes after the loss may pass
        self.end(fault.ending)
        fault.happen()

    def _in_time(self, act: Callable[[], None]) -> None:
        """Acts after the delay of the moment, never before what was to be done earlier."""
        if self._board.is_holding:
            self._held_back.append(act)
            return
        due = self._loop.time() + self._board.delay_s
        if not self._waiting and not self._board.delay_s:
            act()
            return
        self._waiting.append((due, act))
        if len(self._waiting) == 1:
            self._loop.call_at(due, self._act)

    def _act(self) -> None:
        # One timer for all: of two that are due the event loop may run the later one first.
        while self._waiting and self._waiting[0][0] <= self._loop.time():
            self._waiting[0][1]()
            self._waiting.popleft()  # only now: what this one leads to comes behind those that wait
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._act)
