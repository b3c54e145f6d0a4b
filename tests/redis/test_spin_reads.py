"""Looking for a reply a moment longer instead of sleeping: nobody is starved, and nothing but the reply is read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import penstock.redis.aio
import penstock.redis.blocking
from penstock import StreamClient
from penstock.errors import ConnectionFailed, ConnectionLost
from penstock.redis import spin_reads
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.spin_reads import SpinReads
from tests.helpers.aio import next_turn
from tests.helpers.threads import eventually
from tests.redis.halves import AsyncHalf, Half, SyncHalf

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Peer:
    """The server's end of a connection, in the hands of the test."""

    def __init__(self, half: Half) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            self.end, _ = listener.accept()
        self.end.settimeout(30)
        self.connection = half.do(self._adopted, half, ours)

    def _adopted(self, half: Half, ours: socket.socket) -> Any:
        made = half.lane.Connection(5.0, "the peer") if isinstance(half, SyncHalf) else None
        if made is not None:
            made.adopt(ours)
            return made
        return self._adopt_async(half, ours)

    @staticmethod
    async def _adopt_async(half: Half, ours: socket.socket) -> Any:
        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        made = half.lane.Connection(5.0, "the peer")
        made.adopt(transport, None)
        return made

    def ask(self, reply: bytes, *commands: tuple[Any, ...]) -> Any:
        """Sends commands to which the reply, or what there is of it, is there at once."""
        self.end.sendall(reply)
        return self.connection.pipeline(commands or [("PING",)])

    def reset(self) -> None:
        """Ends the connection with a reset."""
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.end.close()


@pytest.fixture
def peer(half: Half) -> Iterator[Peer]:
    made = Peer(half)
    yield made
    half.do(made.connection.close)
    made.end.close()


def looks(monkeypatch: pytest.MonkeyPatch, half: Half) -> list[bytes | None]:
    """Returns a list to which every look adds what it found."""
    found: list[bytes | None] = []

    def noted(file: int, most: int) -> bytes | None:
        found.append(spin_reads.spin_read(file, most))
        return found[-1]

    monkeypatch.setattr(half.lane, "spin_read", noted)
    return found


# --- the reply --------------------------------------------------------------------------------------


def test_a_reply_that_is_there_is_seen_at_once(half: Half, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looks(monkeypatch, half)
    assert half.do(peer.ask, b":1\r\n") == [1]
    assert found == [b":1\r\n"]


def test_a_reply_of_which_only_a_part_is_seen_is_completed(half: Half, peer: Peer) -> None:
    reply = half.start(peer.ask, b"*2\r\n$5\r\nhel")
    peer.end.recv(100)
    peer.end.sendall(b"lo\r\n$5")
    peer.end.sendall(b"\r\nworld\r\n")
    assert reply.result(30) == [[b"hello", b"world"]]
    assert half.do(peer.ask, b":7\r\n") == [7]


def test_replies_to_a_pipeline_that_come_bit_by_bit_keep_their_order(half: Half, peer: Peer) -> None:
    replies = half.start(peer.ask, b":1\r\n:", *[("INCR", "key")] * 3)
    peer.end.recv(200)
    peer.end.sendall(b"2\r\n:3\r\n")
    assert replies.result(30) == [1, 2, 3]


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_the_end_that_is_seen_by_a_look_is_told(half: Half, peer: Peer, how: str) -> None:
    peer.end.close() if how == "closed" else peer.reset()
    with pytest.raises((ConnectionLost, ConnectionFailed)):
        half.do(peer.connection.pipeline, [("PING",)])
    assert eventually(lambda: not peer.connection.is_open)


def test_a_reply_before_the_end_counts(half: Half, peer: Peer) -> None:
    assert half.do(peer.ask, b":1\r\n") == [1]
    peer.end.shutdown(socket.SHUT_WR)
    with pytest.raises((ConnectionLost, ConnectionFailed)):
        half.do(peer.connection.pipeline, [("INCR", "key")])


def test_half_a_reply_before_the_end_is_none(half: Half, peer: Peer) -> None:
    reply = half.start(peer.ask, b"$5\r\nhel")
    peer.end.recv(100)
    peer.end.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        reply.result(30)


def test_what_is_not_resp_is_told_when_a_look_finds_it(half: Half, peer: Peer) -> None:
    with pytest.raises(ConnectionLost):
        half.do(peer.ask, b"HTTP/1.1 400 Bad Request\r\n")
    assert not peer.connection.is_open


# --- when it pays -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
def test_a_server_that_answers_late_is_soon_not_looked_for(
    half: Half, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(half.lane, "spin_read", lambda file, _most: looked.append(file))  # each of them in vain
    connection = half.connect(server.port)
    looked.clear()
    for _ in range(100):
        assert half.do(connection.pipeline, [("PING",)]) == [b"PONG"]
    # After 0, 2, 4, 8, ... requests. Another thread of this process may use a connection of its own.
    assert 0 < looked.count(connection._file) <= 8


def test_a_look_at_a_silent_socket_ends_without_a_reply() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert spin_reads.spin_read(ours.fileno(), 100) is None
        theirs.sendall(b"late")
        assert spin_reads.spin_read(ours.fileno(), 100) == b"late"


def test_the_pauses_between_looks_in_vain_grow_and_one_reply_ends_them() -> None:
    judge = SpinReads()
    judge._skip = 0  # whatever this machine has
    gaps = []
    for _ in range(8):
        gap = 0
        while not judge.is_worthwhile():
            gap += 1
        gaps.append(gap)
        judge.note(is_found=False)
    assert gaps == [0, 0, 2, 4, 8, 16, 32, 64]
    while not judge.is_worthwhile():
        pass
    judge.note(is_found=True)
    assert judge.is_worthwhile()


def test_with_one_processor_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin_reads, "processors", lambda: 1)
    judge = SpinReads()
    assert not any(judge.is_worthwhile() for _ in range(1_000))


# --- others in the event loop -----------------------------------------------------------------------


def test_a_task_whose_replies_are_always_there_starves_nobody(async_half: AsyncHalf) -> None:
    peer = Peer(async_half)

    async def race() -> int:
        ticks, is_over = 0, False

        async def tick() -> None:
            nonlocal ticks
            while not is_over:
                ticks += 1
                await next_turn()

        ticker = asyncio.create_task(tick())
        for number in range(5_000):
            assert await peer.ask(f":{number}\r\n".encode()) == [number]
            peer.end.recv(1_000)
        is_over = True
        await ticker
        return ticks

    # Thousands of calls take far longer than the half of a millisecond that one turn of the loop may last.
    assert async_half.do(race) > 10
    async_half.do(peer.connection.close)
    peer.end.close()


def test_two_connections_share_the_time_of_a_turn(async_half: AsyncHalf) -> None:
    async def turns() -> bool:
        loop = asyncio.get_running_loop()
        one, other = (penstock.redis.aio.Connection(1.0, "nowhere") for _ in range(2))
        return one._turn_limit is other._turn_limit and one._turn_limit is penstock.redis.aio._TurnLimit.of(loop)

    assert async_half.do(turns)


def test_a_loop_that_has_ended_is_not_kept(redis_url: str) -> None:
    async def ping() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with StreamClient.from_url(redis_url) as client:
            await client.ping()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(ping())
    gc.collect()
    assert loop() is None


# --- other threads ----------------------------------------------------------------------------------


def test_an_abort_while_another_thread_looks_reads_no_foreign_file(monkeypatch: pytest.MonkeyPatch) -> None:
    half = SyncHalf()
    peer = Peer(half)
    is_looking, may_look = threading.Event(), threading.Event()

    def held_up(file: int, most: int) -> bytes | None:
        is_looking.set()
        may_look.wait(30)
        return spin_reads.spin_read(file, most)

    monkeypatch.setattr(penstock.redis.blocking, "spin_read", held_up)
    waiting = half.start(peer.connection.pipeline, [("PING",)])
    assert is_looking.wait(30)
    peer.connection.abort()
    pipes = [os.pipe() for _ in range(20)]  # whoever opens files now would get the number of a closed one
    for _, entrance in pipes:
        os.write(entrance, b"+FOREIGN\r\n")
    may_look.set()
    with pytest.raises(ConnectionLost):
        waiting.result(30)
    for way_out, entrance in pipes:
        assert os.read(way_out, 100) == b"+FOREIGN\r\n"
        os.close(way_out)
        os.close(entrance)
    peer.end.close()


def test_aborts_at_any_moment_touch_no_foreign_file() -> None:
    half, is_over = SyncHalf(), threading.Event()
    strays: list[bytes] = []

    def churn() -> None:
        while not is_over.is_set():
            way_out, entrance = os.pipe()
            os.set_blocking(way_out, False)
            os.write(entrance, b"+FOREIGN\r\n")
            found = b""
            with contextlib.suppress(BlockingIOError):
                found = os.read(way_out, 1_000)
            if found != b"+FOREIGN\r\n":
                strays.append(found)
            os.close(way_out)
            os.close(entrance)

    churning = [half.start(churn) for _ in range(2)]
    for _ in range(200):
        peer = Peer(half)
        calls = [half.start(peer.connection.pipeline, [("PING",)]) for _ in range(2)]
        peer.connection.abort()
        for call in calls:
            assert isinstance(call.exception(30), ConnectionLost | ConnectionFailed)
        peer.end.close()
    is_over.set()
    for churner in churning:
        churner.result(30)
    assert strays == []
