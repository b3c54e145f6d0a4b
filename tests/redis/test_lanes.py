"""The contract of a connection, on both lanes: replies reach those who asked, in order, whatever they are."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from typing import Any, Self

import pytest
import redis
import redis.asyncio

from penstock.errors import ConnectionFailed, ConnectionLost, PenstockError, ServerError, UnsupportedServer, WrongType
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import FaultProxy
from tests.helpers.aio import next_turn
from tests.helpers.threads import eventually
from tests.redis.halves import AsyncHalf, Half

pytestmark = pytest.mark.usefixtures("default_server")
FIVE_MB = 5 * 1024 * 1024


@pytest.fixture
def connection(half: Half, server: EmbeddedServer) -> Any:
    assert server.port is not None
    return half.connect(server.port)


def test_a_reply_is_what_the_server_sent(half: Half, connection: Any) -> None:
    assert half.do(connection.call, "PING") == b"PONG"
    assert half.do(connection.call, "INCRBY", b"n", 41) == 41
    assert half.do(connection.call, "GET", "none") is None
    assert half.do(connection.call, "RPUSH", "l", "a", b"\x00\xff\r\n", 3) == 3
    assert half.do(connection.call, "LRANGE", "l", 0, -1) == [b"a", b"\x00\xff\r\n", b"3"]
    assert half.do(connection.call, "ECHO", "") == b""
    assert half.do(connection.call, "ECHO", "ünïcode") == "ünïcode".encode()


def test_every_caller_gets_its_own_reply_however_many_call_at_once(half: Half, connection: Any) -> None:
    calls = [half.start(connection.call, "ECHO", f"caller {n}") for n in range(200)]
    assert [call.result(30) for call in calls] == [b"caller %d" % n for n in range(200)]


def test_pipelines_and_single_calls_side_by_side_do_not_mix(half: Half, connection: Any) -> None:
    singles, pipelines = [], []
    for n in range(50):
        singles.append(half.start(connection.call, "ECHO", n))
        pipelines.append(half.start(connection.pipeline, [("ECHO", f"{n}.{part}") for part in range(20)]))
    assert [call.result(30) for call in singles] == [b"%d" % n for n in range(50)]
    for n, call in enumerate(pipelines):
        assert call.result(30) == [b"%d.%d" % (n, part) for part in range(20)]


def test_commands_of_one_caller_are_executed_in_order(half: Half, connection: Any) -> None:
    replies = half.do(connection.pipeline, [("RPUSH", "l", n) for n in range(500)])
    assert replies == list(range(1, 501))
    assert half.do(connection.call, "LRANGE", "l", 0, -1) == [b"%d" % n for n in range(500)]


def test_an_error_reply_is_raised_by_call(half: Half, connection: Any) -> None:
    half.do(connection.call, "SET", "text", "x")
    with pytest.raises(WrongType, match="WRONGTYPE"):
        half.do(connection.call, "LPUSH", "text", "y")
    assert half.do(connection.call, "GET", "text") == b"x", "an error reply is no reason to close the connection"


def test_a_pipeline_returns_errors_in_their_place(half: Half, connection: Any) -> None:
    commands = [("SET", "text", "x"), ("LPUSH", "text", "y"), ("NOSUCHCOMMAND",), ("INCR", "text"), ("GET", "text")]
    stored, wrong, unknown, refused, read = half.do(connection.pipeline, commands)
    assert (stored, read) == (b"OK", b"x")
    assert isinstance(wrong, WrongType)
    assert isinstance(unknown, UnsupportedServer)
    assert isinstance(refused, ServerError)


def test_an_error_inside_an_array_stays_in_the_array(half: Half, connection: Any) -> None:
    commands = [("MULTI",), ("SET", "text", "x"), ("INCR", "text"), ("EXEC",)]
    stored, refused = half.do(connection.pipeline, commands)[-1]
    assert stored == b"OK"
    assert isinstance(refused, PenstockError)


def test_an_empty_pipeline_has_no_replies(half: Half, connection: Any) -> None:
    assert half.do(connection.pipeline, []) == []
    assert half.do(connection.call, "ECHO", "still in step") == b"still in step"


def test_five_megabytes_travel_in_both_directions(half: Half, connection: Any) -> None:
    body = bytes(range(256)) * (FIVE_MB // 256)
    calls = [half.start(connection.call, "ECHO", body), half.start(connection.call, "ECHO", "small")]
    assert calls[0].result(30) == body
    assert calls[1].result(30) == b"small"


def test_a_pipeline_of_many_large_replies_is_read_to_its_end(half: Half, connection: Any) -> None:
    half.do(connection.call, "SET", "big", b"x" * 1_000_000)
    sizes = [len(reply) for reply in half.do(connection.pipeline, [("GET", "big")] * 20)]
    assert sizes == [1_000_000] * 20


def test_each_reply_of_a_pipeline_is_told_at_once_though_the_last_command_blocks(
    half: Half, connection: Any, raw: redis.Redis
) -> None:
    told: list[tuple[int, Any]] = []
    commands = [("PING",), ("BLPOP", "list", 20)]
    call = half.start(connection.pipeline, commands, on_reply=lambda index, reply: told.append((index, reply)))
    eventually(lambda: told == [(0, b"PONG")])
    assert not call.done()
    raw.rpush("list", "at last")
    assert call.result(30) == [b"PONG", [b"list", b"at last"]]
    assert told[1] == (1, [b"list", b"at last"])


def test_a_command_that_cannot_be_packed_leaves_the_others_in_step(half: Half, connection: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        half.do(connection.call, "ECHO", object())
    with pytest.raises((TypeError, ValueError)):
        half.do(connection.pipeline, [("ECHO", "a"), ("ECHO", "\ud800")])
    assert half.do(connection.call, "ECHO", "in step") == b"in step"


def test_a_listener_that_fails_breaks_the_connection_rather_than_its_order(half: Half, connection: Any) -> None:
    def fail(_index: int, _reply: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, ConnectionLost)):
        half.do(connection.pipeline, [("PING",), ("ECHO", "x")], on_reply=fail)
    eventually(lambda: not connection.is_open)
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "PING")


def test_what_is_not_resp_breaks_the_connection(half: Half) -> None:
    with _Babbler(b"HTTP/1.1 400 Bad Request\r\n\r\n") as babbler:
        connection = half.connect(babbler.port)
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{babbler.port}"):
            half.do(connection.call, "PING")
        assert not connection.is_open


# --- what only the asyncio lane has -----------------------------------------------------------------


def test_a_cancelled_call_does_not_shift_the_replies_of_others(async_half: AsyncHalf, fault_proxy: FaultProxy) -> None:
    connection = async_half.connect(fault_proxy.port)

    async def story() -> list[bytes]:
        fault_proxy.hold_replies()
        tasks = [asyncio.ensure_future(connection.call("ECHO", n)) for n in range(30)]
        pipelines = [asyncio.ensure_future(connection.pipeline([("ECHO", "x"), ("ECHO", "y")])) for _ in range(10)]
        await next_turn()  # all of them are sent now
        for task in [*tasks[::3], *pipelines[::2]]:
            task.cancel()
        fault_proxy.release_replies()
        late = await connection.call("ECHO", "late")
        found = await asyncio.gather(*tasks, *pipelines, return_exceptions=True)
        for n, reply in enumerate(found[:30]):
            assert isinstance(reply, asyncio.CancelledError) if n % 3 == 0 else reply == b"%d" % n
        for n, replies in enumerate(found[30:]):
            assert isinstance(replies, asyncio.CancelledError) if n % 2 == 0 else replies == [b"x", b"y"]
        return [late, await connection.call("ECHO", "after")]

    assert async_half.do(story) == [b"late", b"after"]
    assert fault_proxy.count("ECHO") == 52, "a cancelled command was sent once, like the others"


def test_a_cancellation_that_the_driver_forgets_ends_the_caller_all_the_same(
    async_half: AsyncHalf, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = redis.asyncio.Connection.connect

    async def forgetful(self: Any) -> None:
        # As asyncio.wait_for() does before Python 3.12, if it is done in the same moment.
        await connect(self)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await next_turn()

    monkeypatch.setattr(redis.asyncio.Connection, "connect", forgetful)
    with pytest.raises(concurrent.futures.CancelledError):
        async_half.connect(fault_proxy.port)
    eventually(lambda: fault_proxy.connections == 0)


def test_calls_of_one_turn_of_the_loop_share_a_write(async_half: AsyncHalf, fault_proxy: FaultProxy) -> None:
    connection = async_half.connect(fault_proxy.port)
    written: list[bytes] = []

    async def story() -> None:
        transport = connection._transport
        connection._transport = _Spy(transport, written)
        await asyncio.gather(*(connection.call("ECHO", n) for n in range(100)))
        connection._transport = transport

    async_half.do(story)
    assert len(written) == 1
    assert fault_proxy.count("ECHO") == 100


def test_a_posted_command_answers_its_callback(async_half: AsyncHalf, server: EmbeddedServer) -> None:
    assert server.port is not None
    connection = async_half.connect(server.port)
    answers: list[Any] = []

    async def story() -> None:
        connection.post(answers.append, ("ECHO", "posted"))
        connection.post(answers.append, ("LPUSH", "text"), ("ECHO", "after it"))
        assert await connection.call("ECHO", "called") == b"called"

    async_half.do(story)
    assert answers[0] == b"posted"
    assert isinstance(answers[1], ServerError)
    assert answers[2:] == [b"after it"]


def test_a_posted_command_that_cannot_be_packed_is_refused_and_leaves_no_trace(
    async_half: AsyncHalf, server: EmbeddedServer
) -> None:
    assert server.port is not None
    connection = async_half.connect(server.port)
    answers: list[Any] = []

    async def story() -> list[Any]:
        with pytest.raises(TypeError):
            connection.post(answers.append, ("ECHO", object()))
        return [await connection.call("ECHO", "one"), await connection.call("ECHO", "two")]

    assert async_half.do(story) == [b"one", b"two"]
    assert answers == []


class _Spy:
    def __init__(self, transport: Any, written: list[bytes]) -> None:
        self._transport, self._written = transport, written

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


class _Babbler:
    """A server that lets a client log in and answers everything else with the same bytes."""

    def __init__(self, says: bytes) -> None:
        self._says = says
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        connected, _ = self._socket.accept()
        with connected:
            while received := connected.recv(65536):
                greetings = received.count(b"SETINFO")
                connected.sendall(b"+OK\r\n" * greetings or self._says)

    def __exit__(self, *_: object) -> None:
        self._socket.close()
