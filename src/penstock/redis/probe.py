"""One command to one server over a plain socket, for code that starts servers before any client exists."""

from __future__ import annotations

import socket
from typing import TypeAlias

import hiredis

from penstock.redis.packing import pack

SocketAddress: TypeAlias = str | tuple[str, int]
"""The path of a unix socket, or a host and a port."""

_UNFINISHED = object()


def ask(address: SocketAddress, *words: str | int | bytes, timeout_s: float = 10.0) -> object:
    """Sends one command on a fresh connection and returns the reply; an error reply is returned, not raised.

    Raises:
        OSError: no server listens there, or the reply did not arrive in time.

    """
    reader = hiredis.Reader(notEnoughData=_UNFINISHED)
    with connect(address, timeout_s) as connection:
        connection.sendall(pack(words))
        while (reply := reader.gets()) is _UNFINISHED:
            received = connection.recv(65536)
            if not received:
                raise ConnectionResetError(f"{address} closed the connection before replying to {words[0]!r}")
            reader.feed(received)
    return reply


def connect(address: SocketAddress, timeout_s: float) -> socket.socket:
    """Opens a blocking socket to the address."""
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
