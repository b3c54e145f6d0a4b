"""A connection to PostgreSQL that is opened when it is needed, prepared, watched and given up when it hangs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import psycopg

import penstock.results.postgres_sql as sql
from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.results.postgres_errors import is_connection_lost, translate
from penstock.runtime.aio import Lock, home

if TYPE_CHECKING:
    Connection = psycopg.AsyncConnection[tuple[object, ...]]

T = TypeVar("T")


class PostgresLink:
    """One connection, used by one caller at a time."""

    def __init__(self, dsn: str, timeout_s: float) -> None:
        self._dsn, self.timeout_s = dsn, timeout_s
        self.where = _where(dsn)
        self._connection: Connection | None = None
        self._home: object = None  # the event loop, or the process, in which the connection was made
        self._is_prepared = False
        self._lock = Lock()

    async def run(self, what: str, step: Callable[[Connection], Awaitable[T]]) -> T:
        """Carry out a step that may be repeated, on a new connection if the old one is gone."""
        async with self._lock:
            try:
                return await self._attempt(what, step)
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise translate(what, self.where, error) from error
            try:  # the server was restarted, say; if it is still away, the caller is told
                return await self._attempt(what, step)
            except psycopg.Error as error:
                raise translate(what, self.where, error) from error

    async def _attempt(self, what: str, step: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._open()
        has_hung = threading.Event()
        try:
            with hanging_up(connection.fileno(), self.timeout_s, has_hung):
                if not self._is_prepared:
                    await prepare(connection, self.where)
                    self._is_prepared = True
                return await step(connection)
        except psycopg.Error as error:
            if connection.closed:
                await self._drop()
            else:
                await _roll_back(connection)
            if has_hung.is_set():
                raise BackendUnavailable(f"cannot {what} in {self.where}: no answer for {self.timeout_s} s") from error
            raise
        except BaseException:
            await self._drop()  # cancelled in the middle: what the server still sends belongs to nobody
            raise

    async def _open(self) -> Connection:
        if self._home is not home():
            _leave(self._connection)
            self._connection, self._home = None, home()
        if self._connection is None or self._connection.closed:
            self._connection = await self.connect()
        return self._connection

    async def connect(self) -> Connection:
        """Return a new connection, which belongs to the caller."""
        timeout_s = max(2, round(self.timeout_s))  # libpq takes 1 for 2
        return await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, connect_timeout=timeout_s, application_name="penstock"
        )

    async def close(self) -> None:
        """Close the connection, if there is one."""
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._home is home():
            with contextlib.suppress(psycopg.Error):
                await connection.close()
        else:
            _leave(connection)


def _leave(connection: Connection | None) -> None:
    """Give up a connection of an event loop that has ended, or of the process that we were forked from."""
    if connection is not None:
        connection.pgconn.finish()  # psycopg does that only in the process that made it


async def _roll_back(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.rollback()


async def prepare(connection: Connection, where: str) -> None:
    """Bring the tables to our version; a user without the right to create them finds them ready."""
    if await _version(connection) == sql.VERSION:
        return
    async with connection.transaction():
        await connection.execute(sql.LOCK)
        version = await _version(connection)
        if version > sql.VERSION:
            raise BackendRefused(
                f"the tables in {where} have version {version}, this version of Penstock understands up to "
                f"{sql.VERSION}: update Penstock"
            )
        for step in sql.STEPS[version:]:
            await connection.execute(step)
        if version < sql.VERSION:
            await connection.execute(sql.CREATE_VERSIONS)
            await connection.execute(sql.WRITE_VERSION, [sql.VERSION])


async def _version(connection: Connection) -> int:
    exists = await (await connection.execute(sql.EXISTS)).fetchone()
    if exists is None or not exists[0]:
        return 0
    row = await (await connection.execute(sql.READ_VERSION)).fetchone()
    return 0 if row is None else int(str(row[0]))


@contextlib.contextmanager
def hanging_up(descriptor: int, timeout_s: float, has_hung: threading.Event) -> Iterator[None]:
    """Shut the socket down if the block takes longer; libpq itself waits for ever for a server that says nothing."""
    line = socket.socket(fileno=os.dup(descriptor))

    def hang_up() -> None:
        has_hung.set()
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.close()


def _where(dsn: str) -> str:
    """Return what the connection string says about the place, without user and password."""
    parts: dict[str, object] = {"port": "unknown"}
    with contextlib.suppress(psycopg.Error):
        parts = dict(psycopg.conninfo.conninfo_to_dict(dsn))
    ports = str(parts.get("port") or 5432)
    if not ports.replace(",", "").isdigit():
        # Without the reason: libpq repeats parts of the text, which may be a password.
        raise ConfigurationError(
            "the dsn is no connection string of PostgreSQL: write postgresql://user:password@host:5432/database, with "
            "special characters percent-encoded, or host=... dbname=... user=... password=..."
        )
    host = parts.get("host") or parts.get("hostaddr") or "the default host"
    return f"PostgreSQL {host}:{ports}/{parts.get('dbname') or ''}"
