"""Reading many rows of PostgreSQL, a page at a time."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import psycopg

import penstock.results.postgres_sql as sql
from penstock.errors import BackendUnavailable
from penstock.results.postgres_errors import translate
from penstock.results.postgres_link import PostgresLink, hanging_up, prepare


class _Closable(Protocol):
    async def close(self) -> None: ...


Page = list[tuple[object, ...]]


async def pages(link: PostgresLink, kind: str | None, size: int) -> AsyncGenerator[Page, None]:
    """Yield the rows, the oldest first, from a cursor in the server: it sees the rows that were there at the start.

    On a connection of its own, because the cursor lives in a transaction that stays open while the caller works.
    """
    what = "list results"
    has_hung = threading.Event()
    try:
        async with AsyncExitStack() as stack:
            connection = await link.connect()
            stack.push_async_callback(_close, connection)
            with hanging_up(connection.fileno(), link.timeout_s, has_hung):
                await prepare(connection, link.where)
                await connection.set_autocommit(False)
                cursor = connection.cursor(name="penstock_results")
                stack.push_async_callback(_close, cursor)
                await cursor.execute(*_query(kind), binary=True)
            while True:
                with hanging_up(connection.fileno(), link.timeout_s, has_hung):
                    page = await cursor.fetchmany(size)
                if not page:
                    break
                yield page
    except psycopg.Error as error:
        if has_hung.is_set():
            raise BackendUnavailable(f"cannot {what} in {link.where}: no answer for {link.timeout_s} s") from error
        raise translate(what, link.where, error) from error


def _query(kind: str | None) -> tuple[str, list[str]]:
    return (sql.ALL, []) if kind is None else (sql.OF_KIND, [kind])


async def _close(what: _Closable) -> None:
    with suppress(psycopg.Error):  # the server may have gone first
        await what.close()
