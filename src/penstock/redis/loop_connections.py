"""The connections of one client in one event loop, and the way to the servers behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable

from penstock.errors import ClientClosed, ConnectionFailed, ConnectionLost
from penstock.redis.aio import Command, Connection
from penstock.redis.aio_locator import Locator
from penstock.redis.settings import ConnectionSettings, Host
from penstock.runtime.aio import Event, Lock, pause

_LEAST_REST_S = 0.05
_LONGEST_REST_S = 1.0  # in a cluster, where nobody tells that a replica took over


class Rest:
    """The time between two tries, which ends when another server is the master."""

    def __init__(self) -> None:
        self._is_over = Event()

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return not self._is_over.is_set()

    def abort_from_outside(self) -> None:
        """End it, from any thread."""
        self._is_over.set_from_outside()

    async def wait(self, seconds: float) -> None:
        """Wait until it is over, but not for longer."""
        try:
            await self._is_over.wait(seconds)
        finally:
            self._is_over.set()


class LoopConnections:
    """The connections of one client in one event loop.

    Guarantees: whatever it opens is closed with it, even if it is closed while somebody opens a connection. What timed
    out on a shared connection is executed before anything that is sent after it, or never.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self.locator = Locator(settings)
        self.shared: dict[Host, Connection] = {}
        self._opened: list[Connection] = []
        self._listing = threading.Lock()  # in the sync half other threads open connections meanwhile
        self._opening = Lock()
        self.is_closed = False
        self.end: Callable[[], Awaitable[None]] = self.close

    async def to(self, host: Host) -> Connection:
        """Return the shared connection to a server, opened anew when it is broken."""
        connection = self.shared.get(host)
        if connection is not None and connection.is_open:
            return connection
        async with self._opening:
            connection = self.shared.get(host)
            if connection is None or not connection.is_open:
                connection = self.shared[host] = await self._follow(connection, await self.open(host))
            return connection

    async def _follow(self, before: Connection | None, connection: Connection) -> Connection:
        # The server closes the connection before, and with it what may be on its way there still.
        commands: list[Command] = [("CLIENT", "ID")]
        if before is not None and before.has_timed_out and before.client_id:
            commands.insert(0, ("CLIENT", "KILL", "ID", before.client_id))
        try:
            number = (await connection.pipeline(commands, timeout_s=self._settings.connect_timeout_s))[-1]
        except BaseException as error:
            connection.abort()
            if isinstance(error, ConnectionLost):  # nothing of what the caller wants was sent
                raise ConnectionFailed(f"cannot connect to Redis at {connection.where}: {error}") from error
            raise
        connection.client_id = number if isinstance(number, int) else 0  # it may be forbidden to ask
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
            raise ClientClosed(f"the client to Redis at {self._settings.where} was closed meanwhile; make a new client")
        return connection

    async def _wait_for_room(self) -> None:
        most, deadline = self._settings.max_connections, time.monotonic() + self._settings.pool_timeout_s
        while sum(connection.is_open for connection in self._opened) >= most:
            if time.monotonic() >= deadline:
                raise ConnectionFailed(
                    f"all max_connections={most} connections of this client to Redis at {self._settings.where} are in "
                    f"use, and none became free within {self._settings.pool_timeout_s} s; raise max_connections"
                )
            await pause(0.02)

    async def rest(self, seconds: float) -> None:
        """Wait between two tries, but no longer than until another server is the master."""
        rest = Rest()
        if self._settings.kind == "cluster":
            seconds = min(seconds, _LONGEST_REST_S)
        try:
            self.locator.tie_to_master(rest)
        except ConnectionFailed:
            seconds = min(seconds, _LEAST_REST_S)  # another one is already
        await rest.wait(seconds)

    def abort(self) -> None:
        """Close all connections at once; what waits for a reply gets ConnectionLost."""
        with self._listing:
            self.is_closed = True
            opened = self._opened
        for connection in opened:
            connection.abort()
        self.shared.clear()

    async def close(self) -> None:
        """Close all connections, and those by which the servers were found."""
        self.abort()
        await self.locator.close()
