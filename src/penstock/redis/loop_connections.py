"""The connections of one client in one event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable

from penstock.errors import ClientClosed, ConnectionFailed, ConnectionLost
from penstock.redis.aio import Connection
from penstock.redis.aio_locator import Locator
from penstock.redis.packing import Command
from penstock.redis.settings import ConnectionSettings, Host
from penstock.runtime.aio import Lock, pause


class LoopConnections:
    """The connections of one client in one event loop.

    Guarantees: closing it closes all connections, even one that is being opened meanwhile. A command that timed out on
    a shared connection is executed before anything that is sent after it, or never.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self.locator = Locator(settings)
        self.shared: dict[Host, Connection] = {}
        self._opened: list[Connection] = []
        self._listing = threading.Lock()  # in the sync API, other threads open connections meanwhile
        self._opening = Lock()
        self.is_closed = False
        self.end: Callable[[], Awaitable[None]] = self.close

    async def to(self, host: Host) -> Connection:
        """Return the shared connection to a server, reopened if it is broken."""
        connection = self.shared.get(host)
        if connection is not None and connection.is_open:
            return connection
        async with self._opening:
            connection = self.shared.get(host)
            if connection is None or not connection.is_open:
                connection = self.shared[host] = await self._follow(connection, await self.open(host))
            return connection

    async def _follow(self, before: Connection | None, connection: Connection) -> Connection:
        # Make the server close the previous connection, and drop what may still be in transit on it.
        commands: list[Command] = [("CLIENT", "ID")]
        if before is not None and before.has_timed_out and before.client_id:
            commands.insert(0, ("CLIENT", "KILL", "ID", before.client_id))
        try:
            number = (await connection.pipeline(commands, timeout_s=self._settings.connect_timeout_s))[-1]
        except BaseException as error:
            connection.abort()
            if isinstance(error, ConnectionLost):  # the caller's command was not sent
                raise ConnectionFailed(f"cannot connect to Redis at {connection.where}: {error}") from error
            raise
        connection.client_id = number if isinstance(number, int) else 0  # the ACL may forbid CLIENT ID
        return connection

    async def open(self, host: Host) -> Connection:
        """Open a connection, waiting for one to be closed when there are too many."""
        await self._wait_for_room()
        connection = await self.locator.connect(host)
        with self._listing:
            self._opened = [*(known for known in self._opened if known.is_open), connection]
            is_late = self.is_closed
        if is_late:
            await self.close()
            raise ClientClosed(
                f"the client for Redis at {self._settings.where} was closed during this call; create a new client"
            )
        return connection

    async def _wait_for_room(self) -> None:
        most, deadline = self._settings.max_connections, time.monotonic() + self._settings.pool_timeout_s
        while sum(connection.is_open for connection in self._opened) >= most:
            if time.monotonic() >= deadline:
                raise ConnectionFailed(
                    f"all max_connections={most} connections to Redis at {self._settings.where} are in use, and "
                    f"none became free within {self._settings.pool_timeout_s} s; raise max_connections"
                )
            await pause(0.02)

    def abort(self) -> None:
        """Close all connections immediately; waiting callers get ConnectionLost."""
        with self._listing:
            self.is_closed = True
            opened = self._opened
        for connection in opened:
            connection.abort()
        self.shared.clear()

    async def close(self) -> None:
        """Close all connections."""
        self.abort()
