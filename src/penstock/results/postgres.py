"""PostgresBackend: results as rows, over a connection that is opened when needed and given up when it hangs."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import penstock.results.postgres_table as sql
from penstock.errors import BackendRefused, ConfigurationError
from penstock.lazy_imports import require
from penstock.number_checks import check_number
from penstock.results.backend import Backend, Chunk
from penstock.results.entry import StoredResult, read_entry
from penstock.runtime.aio import Lock, connection_scope

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.AsyncConnection[tuple[Any, ...]]

T = TypeVar("T")
_CHUNK = 500
_MAX_AT_ONCE = 5_000
_TRIES = 5
# Classes of SQLSTATE: connection, transaction rollback, resources, operator, system, read-only (a failover).
_PASSES = ("08", "40", "53", "55", "57", "58", "25006")


class PostgresBackend(Backend):
    """Stores each result in a row of `penstock_results`, whose `data` is JSONB; the tables are created when missing.

    `dsn` is a connection string of libpq. A server that does not answer for `timeout_s` is given up. The connection is
    opened with the first call and again after the server was away. Needs the extra `postgres`.
    """

    _needs = ("postgres", "dsn")

    def __init__(self, dsn: str, *, timeout_s: float = 30.0) -> None:
        if not str(dsn).strip():
            raise ConfigurationError("dsn must be a connection string: postgresql://user:password@host:5432/database")
        check_number("timeout_s", timeout_s, is_whole=False)
        self._psycopg = require("psycopg", "postgres", "PostgresBackend")
        self._errors = (self._psycopg.Error, TimeoutError)
        self._dsn, self._timeout_s = str(dsn), timeout_s
        self.where = _where(self._dsn)
        self._connection: Connection | None = None
        self._scope: object = None  # the event loop, or the process, in which the connection was made
        self._is_prepared = False
        self._lock = Lock()  # the connection is used by one caller at a time

    def __repr__(self) -> str:
        return f"PostgresBackend({self.where})"

    # --- saving and reading -----------------------------------------------------------------------

    async def _save(self, entries: Sequence[StoredResult]) -> Mapping[str, bytes]:
        stored: dict[str, bytes] = {}
        for start in range(0, len(entries), _MAX_AT_ONCE):
            waiting = entries[start : start + _MAX_AT_ONCE]
            for _ in range(_TRIES):
                stored |= await self._insert(waiting)
                # A conflicting row has disappeared: old results are being deleted.
                waiting = [entry for entry in waiting if entry.result.task_id not in stored]
                if not waiting:
                    break
            else:
                raise BackendRefused(
                    f"the result of task {waiting[0].result.task_id} conflicts with a row in {self.where} that "
                    "this user cannot see: grant SELECT on all rows of penstock_results"
                )
        return stored

    async def _insert(self, entries: Sequence[StoredResult]) -> dict[str, bytes]:
        columns = sql.columns_of(entries)

        async def insert(connection: Connection) -> dict[str, bytes]:
            cursor = await connection.execute(sql.INSERT, columns, binary=True)
            new = {row[0] for row in await cursor.fetchall()}
            stored = {entry.result.task_id: entry.raw for entry in entries if entry.result.task_id in new}
            if others := [entry.result.task_id for entry in entries if entry.result.task_id not in new]:
                found = await connection.execute(sql.FIND, [others], binary=True)
                stored |= dict(await found.fetchall())
            return stored

        return await self._run(insert)

    async def _find(self, task_id: str) -> StoredResult | None:
        async def find(connection: Connection) -> tuple[Any, ...] | None:
            return await (await connection.execute(sql.FIND, [[task_id]], binary=True)).fetchone()

        row = await self._run(find)
        return None if row is None else _entry(row)

    def _chunks(self, kind: str | None) -> AsyncGenerator[Chunk, None]:
        return self.pages(sql.ALL, []) if kind is None else self.pages(sql.OF_KIND, [kind])

    async def pages(
        self, query: str, values: Sequence[Any], size: int = _CHUNK, *, prepares: bool = True
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the results that a query finds, from a cursor in the server: it sees the rows of the moment it began.

        On a connection of its own, because the cursor lives in a transaction that stays open while the caller works.
        """
        async with AsyncExitStack() as stack:
            connection = await self.connect()
            stack.push_async_callback(self._close_quietly, connection)
            with self.limited(connection):
                if prepares:
                    await self._prepare(connection)
                await connection.set_autocommit(False)
                cursor = connection.cursor(name="penstock_results")
                stack.push_async_callback(self._close_quietly, cursor)
                await cursor.execute(query, values, binary=True)
            while True:
                with self.limited(connection):
                    rows = await cursor.fetchmany(size)
                if not rows:
                    break
                yield [found.result for row in rows if (found := _entry(row)) is not None]

    # --- the connection ---------------------------------------------------------------------------

    async def _run(self, step: Callable[[Connection], Awaitable[T]]) -> T:
        """Carry out a step that may be repeated, on a new connection if the old one is gone."""
        async with self._lock:
            try:
                return await self._attempt(step)
            except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
                if error.sqlstate is not None and not error.sqlstate.startswith(("08", "57P")):
                    raise
            return await self._attempt(step)  # the server was restarted, say

    async def _attempt(self, step: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._open()
        try:
            with self.limited(connection):
                if not self._is_prepared:
                    await self._prepare(connection)
                    self._is_prepared = True
                return await step(connection)
        except self._psycopg.Error:
            if connection.closed:
                await self._drop()
            else:
                with suppress(self._psycopg.Error):
                    await connection.rollback()
            raise
        except BaseException:
            await self._drop()  # cancelled in the middle: nothing reads the rest of the reply
            raise

    async def _open(self) -> Connection:
        if self._scope is not connection_scope():
            _leave(self._connection)
            self._connection, self._scope = None, connection_scope()
        if self._connection is None or self._connection.closed:
            self._connection = await self.connect()
        return self._connection

    async def connect(self) -> Connection:
        """Return a new connection, which belongs to the caller."""
        timeout_s = max(2, round(self._timeout_s))  # libpq takes 1 for 2
        connection: Connection = await self._psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, connect_timeout=timeout_s, application_name="penstock"
        )
        return connection

    @contextmanager
    def limited(self, connection: Connection) -> Iterator[None]:
        """Raise TimeoutError if the block exceeds its limit; libpq waits forever for a server that hangs."""
        line = socket.socket(fileno=os.dup(connection.fileno()))
        has_hung = threading.Event()

        def abort() -> None:
            has_hung.set()
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        except self._psycopg.Error as error:
            if has_hung.is_set():
                raise TimeoutError(f"no answer within {self._timeout_s} s") from error
            raise
        finally:
            timer.cancel()
            line.close()

    async def close(self) -> None:
        """Close the connection."""
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._scope is connection_scope():
            await self._close_quietly(connection)
        else:
            _leave(connection)

    async def _close_quietly(self, what: Any) -> None:
        with suppress(self._psycopg.Error):  # the server may have gone first
            await what.close()

    async def _prepare(self, connection: Connection) -> None:
        """Bring the tables to our version; a user without the right to create them finds them ready."""
        if await _version(connection) == sql.VERSION:
            return
        async with connection.transaction():
            await connection.execute(sql.LOCK)
            version = await _version(connection)
            if version > sql.VERSION:
                raise BackendRefused(
                    f"the tables in {self.where} have version {version}, but this version of Penstock supports "
                    f"up to {sql.VERSION}: update Penstock"
                )
            for step in sql.STEPS[version:]:
                await connection.execute(step)
            if version < sql.VERSION:
                await connection.execute(sql.CREATE_VERSIONS)
                await connection.execute(sql.WRITE_VERSION, [sql.VERSION])

    def _classified(self, error: Any) -> tuple[bool, str]:
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, TimeoutError):
            return True, text
        if error.sqlstate is not None:
            return error.sqlstate.startswith(_PASSES), text
        if isinstance(error, self._psycopg.OperationalError):
            return not sql.LOGIN_REFUSED.search(text), text
        return isinstance(error, self._psycopg.InterfaceError), text


def _entry(row: tuple[Any, ...]) -> StoredResult | None:
    return read_entry(row[1], f"the row of task {row[0]}")


def _leave(connection: Connection | None) -> None:
    """Give up a connection of an event loop that has ended, or of the process that we were forked from."""
    if connection is not None:
        connection.pgconn.finish()  # psycopg does that only in the process that made it


async def _version(connection: Connection) -> int:
    exists = await (await connection.execute(sql.EXISTS)).fetchone()
    if exists is None or not exists[0]:
        return 0
    row = await (await connection.execute(sql.READ_VERSION)).fetchone()
    return 0 if row is None else int(row[0])


def _where(dsn: str) -> str:
    """Return what the connection string says about the place, without user and password."""
    import psycopg

    parts: dict[str, object] = {"port": "unknown"}
    with suppress(psycopg.Error):
        parts = dict(psycopg.conninfo.conninfo_to_dict(dsn))
    ports = str(parts.get("port") or 5432)
    if not ports.replace(",", "").isdigit():
        # Without the reason: libpq repeats parts of the text, which may be a password.
        raise ConfigurationError(
            "the dsn is not a PostgreSQL connection string: write "
            "postgresql://user:password@host:5432/database, with special characters percent-encoded, or "
            "host=... dbname=... user=... password=..."
        )
    host = parts.get("host") or parts.get("hostaddr") or "the default host"
    return f"PostgreSQL {host}:{ports}/{parts.get('dbname') or ''}"
