"""PostgresBackend: results as rows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

from penstock.config import check_number
from penstock.errors import BackendRefused, ConfigurationError, DecodeError
from penstock.keys import check_name
from penstock.results.batch import Batch, Entry
from penstock.results.extras import require
from penstock.settings import ResultBackendSettings
from penstock.task import Result, check_id, decode_result

if TYPE_CHECKING:
    from penstock.results.postgres_link import Connection

log = logging.getLogger(__name__)
_CHUNK = 500
_MOST_AT_ONCE = 5_000
_TRIES = 5


class PostgresBackend:
    """Keeps each result in a row of `penstock_results`, whose `data` is JSONB; the tables are created when missing.

    `dsn` is a connection string of libpq. A server that does not answer for `timeout_s` is given up. The connection is
    opened with the first call and again after the server was away. Needs the extra `postgres`.
    """

    def __init__(self, dsn: str, *, timeout_s: float = 30.0) -> None:
        if not str(dsn).strip():
            raise ConfigurationError("dsn must be a connection string: postgresql://user:password@host:5432/database")
        check_number("timeout_s", timeout_s, is_whole=False)
        require("psycopg", "postgres", "PostgresBackend")
        from penstock.results.postgres_link import PostgresLink

        self._link = PostgresLink(str(dsn), timeout_s)

    @classmethod
    def from_settings(cls, settings: ResultBackendSettings) -> Self:
        """Return the back-end that the settings describe: those of `[result_backend.postgres]`."""
        if "dsn" not in settings.options:
            raise ConfigurationError(
                "the result back-end postgres needs a dsn: set PENSTOCK__RESULT_BACKEND__POSTGRES__DSN, or dsn or "
                "dsn_file under [result_backend.postgres]"
            )
        return cls(**settings.options)

    def __repr__(self) -> str:
        return f"PostgresBackend({self._link.where})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one is there, which stays."""
        return (await self.save_many([result]))[0]

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results in one statement; return for each what save() would."""
        batch = Batch(results)
        stored: dict[str, bytes] = {}
        for start in range(0, len(batch.entries), _MOST_AT_ONCE):
            entries = batch.entries[start : start + _MOST_AT_ONCE]
            for _ in range(_TRIES):
                stored |= await self._save(entries)
                # A row that was in the way and is gone again: somebody deletes old results.
                entries = [entry for entry in entries if entry.result.task_id not in stored]
                if not entries:
                    break
            else:
                raise BackendRefused(
                    f"the result of task {entries[0].result.task_id} meets one in {self._link.where} that this user "
                    f"cannot see: it needs SELECT on all rows of penstock_results"
                )
        return batch.outcomes(stored)

    async def _save(self, entries: list[Entry]) -> dict[str, bytes]:
        import penstock.results.postgres_sql as sql
        from penstock.results.postgres_row import columns_of

        columns = columns_of(entries)

        async def insert(connection: Connection) -> dict[str, bytes]:
            cursor = await connection.execute(sql.INSERT, columns, binary=True)
            new = {row[0] for row in await cursor.fetchall()}
            stored = {entry.result.task_id: entry.raw for entry in entries if entry.result.task_id in new}
            if others := [entry.result.task_id for entry in entries if entry.result.task_id not in new]:
                found = await connection.execute(sql.FIND, [others], binary=True)
                stored |= {str(row[0]): _bytes(row[1]) for row in await found.fetchall()}
            return stored

        return await self._link.run("save results", insert)

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""
        import penstock.results.postgres_sql as sql

        check_id("task_id", task_id)

        async def find(connection: Connection) -> tuple[object, ...] | None:
            return await (await connection.execute(sql.FIND, [[task_id]], binary=True)).fetchone()

        row = await self._link.run("read results", find)
        return None if row is None else _result(str(row[0]), row[1])

    async def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, the oldest first, from a cursor on a connection of its own."""
        from penstock.results.postgres_pages import pages

        if kind is not None:
            check_name("kind", kind)
        async with aclosing(pages(self._link, kind, _CHUNK)) as found:
            async for page in found:
                for row in page:
                    result = _result(str(row[0]), row[1])
                    if result is not None:
                        yield result

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _result(task_id: str, raw: object) -> Result | None:
    try:
        return decode_result(_bytes(raw))
    except DecodeError as error:
        log.warning("the row of task %s holds no valid result, and is skipped: %s", task_id, error)
        return None
