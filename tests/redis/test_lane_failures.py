"""The contract of a connection that breaks, on both lanes: everybody is told, nobody twice, nothing is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from concurrent.futures import Future
from typing import Any, Literal

import pytest
import redis

from penstock.errors import CommandTimeout, ConnectionFailed, ConnectionLost
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import FaultProxy
from tests.helpers.aio import next_turn
from tests.helpers.threads import eventually
from tests.redis.halves import AsyncHalf, Half, SyncHalf

pytestmark = pytest.mark.usefixtures("default_server")


PATIENT_S = 300.0  # whoever waits for so long is not waited for by these tests


@pytest.fixture
def connection(half: Half, fault_proxy: FaultProxy) -> Any:
    return half.connect(fault_proxy.port, socket_timeout_s=PATIENT_S)


def fails(call: Future[Any], error: type[Exception]) -> None:
    """Waits for the call to fail with the error, but not for as long as the connection is patient."""
    with pytest.raises(error):
        call.result(30)


# --- timeouts -------------------------------------------------------------------------------------


def test_no_answer_in_time_is_a_command_timeout_and_the_end_of_the_connection(
    half: Half, fault_proxy: FaultProxy
) -> None:
    connection = half.connect(fault_proxy.port, socket_timeout_s=0.2)
    fault_proxy.black_hole()
    with pytest.raises(CommandTimeout, match=f"127.0.0.1:{fault_proxy.port}"):
        half.do(connection.call, "PING")
    assert not connection.is_open
    with pytest.raises(ConnectionFailed, match="closed"):
        half.do(connection.call, "PING")


def test_a_late_answer_is_never_taken_for_that_of_a_later_command(
    half: Half, connection: Any, fault_proxy: FaultProxy
) -> None:
    fault_proxy.hold_replies()
    fails(half.start(connection.call, "ECHO", "late", timeout_s=0.1), CommandTimeout)
    fault_proxy.release_replies()
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "ECHO", "next")


def test_a_reply_that_nobody_asked_for_is_never_taken_for_that_of_a_later_command(half: Half, connection: Any) -> None:
    with contextlib.suppress(ConnectionLost):
        half.do(connection.call, "SUBSCRIBE", "one", "another")  # which the server answers twice
    eventually(lambda: not connection.is_open)
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "PING")


def test_a_timeout_of_its_own_counts_from_the_call_whatever_was_called_before(
    half: Half, connection: Any, fault_proxy: FaultProxy
) -> None:
    half.do(connection.call, "PING")  # with the patience of the connection
    fault_proxy.black_hole()
    fails(half.start(connection.call, "PING", timeout_s=0.2), CommandTimeout)


def test_a_pipeline_keeps_its_own_timeout_too(half: Half, connection: Any, fault_proxy: FaultProxy) -> None:
    half.do(connection.pipeline, [("PING",), ("PING",)])
    fault_proxy.black_hole()
    fails(half.start(connection.pipeline, [("PING",)], timeout_s=0.2), CommandTimeout)


def test_a_reply_that_is_there_is_not_late_when_this_process_stood_still(
    half: Half, connection: Any, fault_proxy: FaultProxy
) -> None:
    fault_proxy.hold_replies()
    if isinstance(half, AsyncHalf):

        async def stand_still() -> Any:
            call = asyncio.ensure_future(connection.call("ECHO", "late", timeout_s=PATIENT_S))
            await asyncio.to_thread(fault_proxy.wait_for, "ECHO")
            fault_proxy.release_replies()
            select.select([connection._file], [], [], 30)  # without a turn for the event loop
            connection._expected[0].deadline = 0.0
            connection._check_deadline()  # the timer comes first, as after a stop by a signal
            return await call

        assert half.do(stand_still) == b"late"
    else:
        connection.send(b"*2\r\n$4\r\nECHO\r\n$4\r\nlate\r\n")
        fault_proxy.wait_for("ECHO")
        fault_proxy.release_replies()
        select.select([connection._socket], [], [], 30)
        assert connection._next(connection._socket, time.monotonic() - 1) == b"late"


def test_a_command_that_blocks_may_take_longer_than_the_timeout_of_the_connection(
    half: Half, fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    connection = half.connect(fault_proxy.port, socket_timeout_s=0.2)
    call = half.start(connection.call, "BLPOP", "list", 60, timeout_s=60)
    fault_proxy.wait_for("BLPOP")
    with pytest.raises(TimeoutError):
        call.result(0.5)
    raw.rpush("list", "x")
    assert call.result(30) == [b"list", b"x"]
    assert half.do(connection.call, "PING", timeout_s=30) == b"PONG"


def test_the_caller_with_the_shortest_patience_ends_the_wait_of_all(
    async_half: AsyncHalf, fault_proxy: FaultProxy
) -> None:
    connection = async_half.connect(fault_proxy.port, socket_timeout_s=PATIENT_S)
    fault_proxy.black_hole()
    patient = async_half.start(connection.call, "PING")
    fails(async_half.start(connection.call, "PING", timeout_s=0.2), CommandTimeout)
    fails(patient, ConnectionLost)


# --- broken connections -----------------------------------------------------------------------------


def test_a_reset_tells_whoever_waits_that_the_outcome_is_unknown(
    half: Half, connection: Any, fault_proxy: FaultProxy
) -> None:
    waiting = half.start(connection.call, "BLPOP", "list", 60)
    assert fault_proxy.wait_for("BLPOP")
    fault_proxy.reset_all()
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{fault_proxy.port}") as told:
        waiting.result(30)
    assert not isinstance(told.value, CommandTimeout)
    eventually(lambda: not connection.is_open)
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "PING")
    with pytest.raises(ConnectionFailed):
        half.do(connection.pipeline, [("PING",)])
    assert fault_proxy.count("PING") == 0, "what is refused with ConnectionFailed was not sent"


def test_everybody_who_waits_is_told(async_half: AsyncHalf, fault_proxy: FaultProxy) -> None:
    connection = async_half.connect(fault_proxy.port)
    answers: list[Any] = []

    async def story() -> list[Any]:
        waiting = [asyncio.ensure_future(connection.call("BLPOP", "list", 60)) for _ in range(10)]
        waiting.append(asyncio.ensure_future(connection.pipeline([("PING",), ("PING",)])))
        await next_turn()
        connection.post(answers.append, ("PING",), ("PING",))
        await asyncio.to_thread(fault_proxy.wait_for, "PING", 4)
        await asyncio.to_thread(fault_proxy.reset_all)
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = async_half.do(story)
    assert [type(error) for error in [*found, *answers]] == [ConnectionLost] * 13


def test_a_server_that_hangs_up_is_noticed_without_a_call(
    half: Half, connection: Any, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    waiting = half.start(connection.call, "BLPOP", "list", 60)
    assert fault_proxy.wait_for("BLPOP")
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(ConnectionLost):
        waiting.result(30)
    assert not connection.is_open


def test_replies_before_the_break_were_told(half: Half, connection: Any, fault_proxy: FaultProxy) -> None:
    told: list[Any] = []
    fault_proxy.drop_reply("INCR", nth=3, ending="reset")
    with pytest.raises(ConnectionLost):
        half.do(connection.pipeline, [("INCR", "n")] * 5, on_reply=lambda _index, reply: told.append(reply))
    assert told in ([1, 2], []), "in order and without a gap; a reset may overtake what the kernel still holds"


def test_abort_ends_a_wait_at_once(half: Half, connection: Any, fault_proxy: FaultProxy) -> None:
    waiting = half.start(connection.call, "BLPOP", "list", 60)
    assert fault_proxy.wait_for("BLPOP")
    half.do(connection.abort)
    with pytest.raises(ConnectionLost):
        waiting.result(30)
    assert not connection.is_open
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "PING")


def test_abort_and_close_may_be_called_again(half: Half, connection: Any) -> None:
    for end in (connection.abort, connection.abort, connection.close, connection.close):
        half.do(end)
    assert not connection.is_open


def test_the_server_sees_a_closed_connection_go(half: Half, connection: Any, fault_proxy: FaultProxy) -> None:
    assert fault_proxy.connections == 1
    half.do(connection.close)
    eventually(lambda: fault_proxy.connections == 0)


def test_a_connection_that_is_broken_off_in_the_moment_in_which_a_reply_has_come_is_closed(
    fault_proxy: FaultProxy,
) -> None:
    connection = SyncHalf().connect(fault_proxy.port)
    used, alone = connection._socket, connection._alone

    def broken_off(*args: Any) -> Any:
        replies = alone(*args)
        with connection._lock:  # of the thread that has its reply and not yet given the lock back
            connection.abort()
        return replies

    connection._alone = broken_off
    assert connection.call("PING") == b"PONG"
    assert used.fileno() == -1


# --- never twice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "reset", "black_hole"])
@pytest.mark.parametrize("loses", ["reply", "request"])
def test_the_driver_never_sends_a_command_twice(
    half: Half,
    fault_proxy: FaultProxy,
    raw: redis.Redis,
    loses: Literal["reply", "request"],
    ending: Literal["close", "reset", "black_hole"],
) -> None:
    connection = half.connect(fault_proxy.port, socket_timeout_s=0.3 if ending == "black_hole" else 30)
    lose = fault_proxy.drop_reply if loses == "reply" else fault_proxy.drop_request
    fault = lose("INCR", ending=ending)
    with pytest.raises(ConnectionLost):
        half.do(connection.call, "INCR", "n")
    assert fault.wait()
    with pytest.raises(ConnectionFailed):
        half.do(connection.call, "INCR", "n")
    assert fault_proxy.count("INCR") == 1
    assert raw.get("n") == (b"1" if loses == "reply" else None)


@pytest.mark.parametrize("command", ["CLIENT", "AUTH", "SELECT"])
def test_a_login_that_breaks_off_is_one_failed_attempt(half: Half, fault_proxy: FaultProxy, command: str) -> None:
    fault_proxy.drop_reply(command)
    settings = {"username": "default", "password": "any", "db": 1, "client_name": "me"}
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{fault_proxy.port}"):
        half.connect(fault_proxy.port, **settings)
    eventually(lambda: fault_proxy.connections == 0)
    assert fault_proxy.count("AUTH") == 1


def test_a_server_that_accepts_and_stays_mute_fails_within_the_connect_timeout(
    half: Half, fault_proxy: FaultProxy, server: EmbeddedServer
) -> None:
    fault_proxy.black_hole()
    with pytest.raises(ConnectionFailed, match="within the connect timeout"):
        half.connect(fault_proxy.port, connect_timeout_s=0.3, socket_timeout_s=PATIENT_S)
    eventually(lambda: fault_proxy.connections == 0)
