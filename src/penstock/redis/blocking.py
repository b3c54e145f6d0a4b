"""The transport, blocking half: the twin of aio.py for threads, method by method."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import hiredis
import redis as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.errors import CommandTimeout, ConnectionFailed, ConnectionLost, PenstockError
from penstock.redis.packing import Command, pack
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.spin_reads import SpinReads, spin_read
from penstock.redis.translate import connect_error, error_reply

Reply: TypeAlias = Any
OnReply: TypeAlias = Callable[[int, Reply], None]
_CHUNK = 1 << 16


class Connection:
    """One connection to one server, shared by threads: one of them at a time sends and waits.

    Guarantees: a command is written at most once. When the connection breaks, the caller that waits gets
    ConnectionLost (outcome unknown); a call on a broken connection raises ConnectionFailed (not executed).
    """

    def __init__(self, timeout_s: float, where: str) -> None:
        self.where = where
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader(replyError=error_reply)
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._file = -1  # descriptor of the socket, unless it uses TLS
        self._spin_reads = SpinReads()
        self._aborted: socket.socket | None = None  # to be closed once no thread reads from it
        self.client_id = 0  # unknown
        self.received = 0  # bytes
        self.has_timed_out = False  # so the server may still execute the last command

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._socket is not None

    def adopt(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.settimeout(self._timeout_s)
        self._socket = connected
        if not isinstance(connected, ssl.SSLSocket):
            self._file = connected.fileno()  # non-blocking because of the timeout

    def call(self, *command: bytes | str | int, timeout_s: float | None = None) -> Reply:
        """Send one command and return its reply; raise an error reply."""
        reply = self._exchange(pack(command), 1, timeout_s, None)[0]
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    def pipeline(
        self, commands: Sequence[Command], timeout_s: float | None = None, on_reply: OnReply | None = None
    ) -> list[Reply]:
        """Send commands in one write and return their replies; an error reply is returned, not raised.

        `on_reply` is called with each reply as it arrives, because the last command may block for long.
        """
        packed = b"".join([pack(command) for command in commands])
        return self._exchange(packed, len(commands), timeout_s, on_reply)

    def post(self, on_answer: Callable[[Reply], None], *commands: Command) -> None:
        """Send commands in one write; `on_answer` is called with each reply, or the error in its place."""
        packed = b"".join([pack(command) for command in commands])
        try:
            replies = self._exchange(packed, len(commands), None, None)
        except PenstockError as error:
            replies = [error] * len(commands)
        for reply in replies:
            on_answer(reply)

    def send(self, packed: bytes) -> None:
        """Write packed commands without waiting; receive() returns the replies.

        Only for a connection that is not shared: a call() or pipeline() in between would mix up the replies.
        """
        self._exchange(packed, 0, None, None)

    def receive(self, count: int) -> list[Reply]:
        """Return the next `count` replies; an error reply is returned, not raised."""
        return self._exchange(b"", count, None, None)

    def _exchange(self, packed: bytes, count: int, timeout_s: float | None, on_reply: OnReply | None) -> list[Reply]:
        try:
            return self._alone(packed, count, timeout_s, on_reply)
        finally:
            if self._aborted is not None:
                self._close_aborted()

    def _alone(self, packed: bytes, count: int, timeout_s: float | None, on_reply: OnReply | None) -> list[Reply]:
        with self._lock:
            connected = self._socket
            if connected is None:
                raise ConnectionFailed(f"the connection to Redis at {self.where} is closed")
            deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
            try:
                self._write(connected, packed)
                replies: list[Reply] = []
                while len(replies) < count:
                    replies.append(self._next(connected, deadline))
                    if on_reply is not None:
                        on_reply(len(replies) - 1, replies[-1])
                if packed and count and self._reader.has_data():
                    raise hiredis.ProtocolError("a reply without a request")  # and it is unclear which one was ours
                return replies
            except TimeoutError:
                self.has_timed_out = True
                raise self._broken(CommandTimeout(f"Redis at {self.where} did not answer in time")) from None
            except (OSError, hiredis.ProtocolError) as error:
                text = f"the connection to Redis at {self.where} broke: {error}"
                raise self._broken(ConnectionLost(text)) from error
            except BaseException:
                # KeyboardInterrupt between request and reply: the next reply would be the wrong one.
                self.abort()
                raise

    def _write(self, connected: socket.socket, packed: bytes) -> None:
        # Write to the descriptor while its buffer has room: send() would poll for that first, every time.
        written = 0
        if self._file >= 0:
            try:  # noqa: SIM105  contextlib.suppress() costs as much as packing the command
                written = os.write(self._file, packed)
            except BlockingIOError:
                pass
        if written < len(packed):
            connected.settimeout(self._timeout_s)
            connected.sendall(memoryview(packed)[written:])

    def _next(self, connected: socket.socket, deadline: float) -> Reply:
        while (reply := self._reader.gets()) is False:
            data = self._spin_read()
            if data is None:
                data = _receive(connected, deadline)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._reader.feed(data)
            self.received += len(data)
        return reply

    def _spin_read(self) -> bytes | None:
        # As in the twin: polling for a moment is cheaper than sleeping until the reply arrives.
        if self._file < 0 or not self._spin_reads.is_worthwhile():
            return None
        data = spin_read(self._file, _CHUNK)  # with a timeout, recv() waits, whatever its flags
        self._spin_reads.note(data is not None)
        return data

    def _broken(self, error: PenstockError) -> PenstockError:
        self.abort()
        return error

    def abort(self) -> None:
        """Close immediately, from any thread; a waiting caller gets ConnectionLost."""
        connected, self._socket, self._file = self._socket, None, -1
        if connected is not None:
            self._aborted = connected
            with contextlib.suppress(OSError):  # not connected any more
                connected.shutdown(socket.SHUT_RDWR)
            self._close_aborted()

    def abort_from_outside(self) -> None:
        """Close immediately, from any thread; as in the twin."""
        self.abort()

    def _close_aborted(self) -> None:
        # Not while a thread is reading: the descriptor of a closed socket is reused by the next file. The thread that
        # has the lock comes here again after releasing it.
        if self._lock.acquire(blocking=False):
            try:
                aborted, self._aborted = self._aborted, None
                if aborted is not None:
                    aborted.close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the connection."""
        self.abort()


def _receive(connected: socket.socket, deadline: float) -> bytes:
    remaining = deadline - time.monotonic()
    if remaining > 0:
        connected.settimeout(remaining)
        with contextlib.suppress(TimeoutError):
            return connected.recv(_CHUNK)
    # Accept what has arrived: this process may have been suspended.
    connected.settimeout(0)
    try:
        return connected.recv(_CHUNK)
    except (BlockingIOError, ssl.SSLWantReadError):
        raise TimeoutError from None


def no_retry() -> Retry:
    """Return the setting that makes redis-py never retry: retry.py decides what is retried."""
    return Retry(NoBackoff(), 0)


def connect(settings: ConnectionSettings, host: Host) -> Connection:
    """Open a connection. redis-py connects and logs in (TCP, TLS, AUTH, SELECT), then hands over its socket."""
    where = settings.where_is(host)
    options = settings.driver_options() | {"retry": no_retry(), "db": settings.db}
    # The handshake is part of connecting and gets the connect timeout, not that of commands.
    options["socket_timeout"] = settings.connect_timeout_s
    kind: Any  # redis-py's blocking half has no types for its constructors
    if settings.path:
        kind = driver.UnixDomainSocketConnection
        made = kind(path=settings.path, **options)
    else:
        kind = driver.SSLConnection if settings.tls else driver.Connection
        made = kind(host=host[0], port=host[1], **options, **settings.tls_options)
    try:
        made.connect()
    except (OSError, TimeoutError, driver.RedisError) as error:
        made.disconnect()
        raise connect_error(error, where) from error
    connection = Connection(settings.socket_timeout_s, where)
    # Taken from redis-py before it can close it.
    connected, made._sock = made._sock, None  # noqa: SLF001
    connection.adopt(connected)
    return connection
