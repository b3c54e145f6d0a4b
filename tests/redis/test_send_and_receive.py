"""A connection whose owner has it for itself sends without waiting, and receives later."""

from __future__ import annotations

from collections.abc import Iterator

import hiredis
import pytest

from penstock.errors import ConnectionFailed, ConnectionLost, ServerError
from penstock.redis.blocking import Connection
from penstock.redis.blocking_locator import Locator
from penstock.redis.settings import ConnectionSettings
from penstock.testing import FaultProxy

pytestmark = pytest.mark.usefixtures("default_server")


def packed(*commands: tuple[str, ...]) -> bytes:
    return b"".join(hiredis.pack_command(command) for command in commands)


@pytest.fixture
def connection(fault_proxy: FaultProxy) -> Iterator[Connection]:
    place = ("127.0.0.1", fault_proxy.port)
    made = Locator(ConnectionSettings(hosts=(place,))).connect(place)
    yield made
    made.close()


def test_what_was_sent_in_several_writes_is_answered_in_its_order(connection: Connection) -> None:
    connection.send(packed(("ECHO", "a"), ("ECHO", "b")))
    connection.send(packed(("ECHO", "c")))
    assert connection.receive(2) == [b"a", b"b"]
    connection.send(packed(("ECHO", "d")))
    assert connection.receive(2) == [b"c", b"d"]
    assert connection.call("ECHO", "and calls work again") == b"and calls work again"


def test_an_error_reply_is_returned_in_its_place(connection: Connection) -> None:
    connection.send(packed(("ECHO", "a"), ("LPUSH", "no value"), ("ECHO", "c")))
    first, wrong, last = connection.receive(3)
    assert (first, last) == (b"a", b"c")
    assert isinstance(wrong, ServerError)


def test_replies_that_cannot_come_any_more_are_lost(connection: Connection, fault_proxy: FaultProxy) -> None:
    fault_proxy.drop_reply("ECHO", ending="close")
    connection.send(packed(("ECHO", "a")))
    with pytest.raises(ConnectionLost):
        connection.receive(1)
    with pytest.raises(ConnectionFailed):
        connection.send(packed(("ECHO", "b")))
    with pytest.raises(ConnectionFailed):
        connection.receive(1)
