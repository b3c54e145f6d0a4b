"""The transport, asyncio half: one pipelined connection over hiredis.

redis-py opens the connection, then this module takes over its socket: the asyncio layer of redis-py takes six to twenty
times as long for the same bytes. The twin is blocking.py.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import hiredis
import redis.asyncio as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.errors import CommandTimeout, ConnectionFailed, ConnectionLost, PenstockError
from penstock.redis.packing import Command, pack
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.spin_reads import SpinReads, spin_read
from penstock.redis.translate import connect_error, error_reply
from penstock.runtime.aio import call_in_loop

T = TypeVar("T")
Reply: TypeAlias = Any
OnReply: TypeAlias = Callable[[int, Reply], None]
_CHUNK = 1 << 16


class _Expected:
    """The replies that one caller awaits."""

    __slots__ = ("count", "deadline", "future", "on_reply", "replies")

    def __init__(
        self, future: asyncio.Future[list[Reply]], count: int, deadline: float, on_reply: OnReply | None
    ) -> None:
        self.future, self.count, self.deadline, self.on_reply = future, count, deadline, on_reply
        self.replies: list[Reply] = []

    def add(self, reply: Reply) -> bool:
        """Take the next reply; return whether it was the last one."""
        self.replies.append(reply)
        if self.on_reply is not None:
            self.on_reply(len(self.replies) - 1, reply)
        if len(self.replies) < self.count:
            return False
        if not self.future.done():  # a cancelled caller left its reply behind
            self.future.set_result(self.replies)
        return True

    def fail(self, error: PenstockError) -> None:
        """Raise the error in the caller, as no reply will come."""
        if not self.future.done():
            self.future.set_exception(error)


class _Answer:
    """The replies that a callback waits for."""

    __slots__ = ("count", "deadline", "on_answer")

    def __init__(self, on_answer: Callable[[Reply], None], count: int, deadline: float) -> None:
        self.on_answer, self.count, self.deadline = on_answer, count, deadline

    def add(self, reply: Reply) -> bool:
        """Pass the reply on; return whether it was the last one."""
        self.on_answer(reply)
        self.count -= 1
        return self.count == 0

    def fail(self, error: PenstockError) -> None:
        """Pass the error on in place of each missing reply."""
        while self.count:
            self.add(error)


class _TurnLimit:
    """Limits one turn of an event loop: a task that never has to wait would starve all others."""

    _LONGEST_S = 0.0005
    # By the id of the loop.
    _all: ClassVar[weakref.WeakValueDictionary[int, _TurnLimit]] = weakref.WeakValueDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Referenced only by its connections, because it keeps the loop alive.
        self._call_soon, self._time = loop.call_soon, loop.time
        self._until_s = 0.0  # 0 = no connection has looked for a reply in this turn yet

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _TurnLimit:
        """Return the object that all connections of a loop share."""
        return cls._all.setdefault(id(loop), cls(loop))

    def has_time(self) -> bool:
        """Return whether this turn may continue without waiting."""
        if self._until_s:
            return self._time() < self._until_s
        self._until_s = self._time() + self._LONGEST_S
        self._call_soon(self._end)
        return True

    def _end(self) -> None:
        self._until_s = 0.0


class Connection(asyncio.Protocol):
    """One connection to one server. All commands of one loop tick go out in one write; replies come in order.

    Guarantees: a command is written at most once. When the connection breaks, every caller that waits gets
    ConnectionLost (outcome unknown); a call on a broken connection raises ConnectionFailed (not executed).
    """

    def __init__(self, timeout_s: float, where: str) -> None:
        self.where = where
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=error_reply)
        self._expected: deque[_Expected | _Answer] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._overdue_s = math.inf
        self._keep: object = None
        self._file = -1  # descriptor of the socket, unless it uses TLS
        self._spin_reads = SpinReads()
        self._turn_limit = _TurnLimit.of(self._loop)
        self.client_id = 0  # unknown
        self.received = 0  # bytes
        self.has_timed_out = False  # so the server may still execute the last command

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None

    def adopt(self, transport: asyncio.Transport, keep: object) -> None:
        """Take over a connected transport; `keep` is held so that its finalizer does not close it."""
        self._transport, self._keep = transport, keep
        transport.set_protocol(self)
        if transport.get_extra_info("sslcontext") is None:
            self._file = transport.get_extra_info("socket").fileno()

    async def call(self, *command: bytes | str | int, timeout_s: float | None = None) -> Reply:
        """Send one command and return its reply; raise an error reply."""
        if not self._unsent:
            self._loop.call_soon(self._flush)  # together with what others send in this turn of the loop
        reply = (await self._send(pack(command), 1, timeout_s, None))[0]
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    async def pipeline(
        self, commands: Sequence[Command], timeout_s: float | None = None, on_reply: OnReply | None = None
    ) -> list[Reply]:
        """Send commands in one write and return their replies; an error reply is returned, not raised.

        `on_reply` is called with each reply as it arrives, because the last command may block for long.
        """
        if not commands:
            return []
        packed = b"".join([pack(command) for command in commands])
        future = self._send(packed, len(commands), timeout_s, on_reply)
        self._flush()  # a pipeline is already a batch: do not wait for more
        self._spin_read()
        return await future

    def post(self, on_answer: Callable[[Reply], None], *commands: Command) -> None:
        """Send commands now, in one write; `on_answer` is called with each reply, or the error, as it arrives."""
        packed = b"".join([pack(command) for command in commands])  # first, because it may raise
        self._expect(_Answer(on_answer, len(commands), self._loop.time() + self._timeout_s))
        self._unsent.append(packed)
        self._flush()
        self._spin_read()

    def _spin_read(self) -> None:
        # A server nearby answers a single request in the time that it takes to fall asleep and wake up. Polling for the
        # reply takes less processor time than sleeping, and a quarter of the wall time.
        if self._file < 0 or len(self._expected) != 1 or not self._spin_reads.is_worthwhile():
            return
        if self._turn_limit.has_time():
            self._poll_reply()
        else:
            self._loop.call_soon(self._poll_reply)  # after all other ready tasks have run

    def _poll_reply(self) -> None:
        transport = self._transport
        if len(self._expected) != 1 or transport is None or transport.get_write_buffer_size():
            return
        data = spin_read(self._file, _CHUNK)
        self._spin_reads.note(bool(data))
        if data:  # at the end of the stream, the event loop closes the connection
            self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        try:
            self.data_received(data)
        except BaseException as error:  # asyncio, too, closes the connection when a protocol fails
            self._break(ConnectionLost(f"the connection to Redis at {self.where} was closed: {error!r}"))
            raise

    def _send(
        self, packed: bytes, count: int, timeout_s: float | None, on_reply: OnReply | None
    ) -> asyncio.Future[list[Reply]]:
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        deadline = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        self._expect(_Expected(future, count, deadline, on_reply))
        self._unsent.append(packed)
        return future

    def _expect(self, expected: _Expected | _Answer) -> None:
        if self._transport is None:
            raise ConnectionFailed(f"the connection to Redis at {self.where} is closed")
        self._expected.append(expected)
        if expected.deadline < self._timer_s:
            self._set_timer(expected.deadline)

    def _flush(self) -> None:
        if self._transport is not None and self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and pass complete replies to the callers in order."""
        reader, expected = self._reader, self._expected
        try:
            reader.feed(data)
            self.received += len(data)
            while expected:
                reply = reader.gets()
                if reply is False:
                    return
                first = expected.popleft()
                try:
                    if not first.add(reply):
                        expected.appendleft(first)
                except BaseException:
                    expected.appendleft(first)  # asyncio now closes the connection, which fails all callers
                    raise
            if reader.has_data():
                raise hiredis.ProtocolError("a reply without a request")
        except hiredis.ProtocolError as error:
            self._break(ConnectionLost(f"Redis at {self.where} sent an invalid RESP reply: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all callers."""
        self._break(ConnectionLost(f"the connection to Redis at {self.where} broke: {exc or 'closed by the server'}"))

    def _check_deadline(self) -> None:
        # One timer per connection instead of one per call, set to the earliest deadline.
        self._timer, self._timer_s = None, math.inf
        if not self._expected:
            return
        deadline = min(expected.deadline for expected in self._expected)
        if self._loop.time() >= deadline and self._overdue_s != deadline:
            # Let the loop read first: if this process was suspended, the replies may have arrived.
            self._overdue_s = deadline
            self._set_timer(self._loop.time())
        elif self._loop.time() >= deadline:
            self.has_timed_out = True
            self._break(CommandTimeout(f"Redis at {self.where} did not answer in time"))
        else:
            self._set_timer(deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(deadline, self._check_deadline), deadline

    def _break(self, error: PenstockError) -> None:
        transport, self._transport = self._transport, None
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = math.inf
        if transport is not None:
            transport.abort()
        while self._expected:
            self._expected.popleft().fail(error)

    def abort(self) -> None:
        """Close immediately; waiting callers get ConnectionLost."""
        if self._transport is not None:
            self._break(ConnectionLost(f"the connection to Redis at {self.where} was closed by this process"))

    def abort_from_outside(self) -> None:
        """Close immediately, from any thread."""
        call_in_loop(self._loop, self.abort)

    async def close(self) -> None:
        """Close the connection."""
        self.abort()


def no_retry() -> Retry:
    """Return the setting that makes redis-py never retry: retry.py decides what is retried."""
    return Retry(NoBackoff(), 0)


async def connect(settings: ConnectionSettings, host: Host) -> Connection:
    """Open a connection. redis-py connects and logs in (TCP, TLS, AUTH, SELECT), then hands over its socket."""
    where = settings.where_is(host)
    options = settings.driver_options() | {"retry": no_retry(), "db": settings.db}
    if settings.path:
        made: Any = driver.UnixDomainSocketConnection(path=settings.path, **options)
    else:
        kind: Any = driver.SSLConnection if settings.tls else driver.Connection
        made = kind(host=host[0], port=host[1], **options, **settings.tls_options)
    try:
        # redis-py bounds the TCP connect and each reply of the handshake; this bounds the sum.
        async with asyncio.timeout(settings.connect_timeout_s):
            await _with_cancellation(made.connect())
    except (OSError, TimeoutError, driver.RedisError) as error:
        await made.disconnect(nowait=True)
        raise connect_error(error, where) from error
    except BaseException:  # cancelled
        await made.disconnect(nowait=True)
        raise
    connection = Connection(settings.socket_timeout_s, where)
    # Taken from redis-py before it can close it.
    writer, made._writer, made._reader = made._writer, None, None  # noqa: SLF001
    connection.adopt(writer.transport, writer)
    return connection


async def _with_cancellation(step: Awaitable[T]) -> T:
    """Await a step of redis-py, and raise a cancellation that it swallowed.

    redis-py uses asyncio.wait_for(), which before Python 3.12 loses a cancellation that arrives just as it finishes.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await step
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result
