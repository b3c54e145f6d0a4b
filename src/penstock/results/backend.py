"""ResultBackend, the contract of every back-end, Backend, what those of Penstock itself share, and all as a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import msgspec

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.keys import check_name
from penstock.lazy_imports import require
from penstock.results.entry import StoredResult, entry_of
from penstock.settings import ResultBackendSettings
from penstock.task import Result, check_id

Chunk = list[Result]
COLUMNS = ("task_id", "kind", "status", "data", "error", "attempts", "started_at", "finished_at")
Form = Literal["auto", "rows", "arrow"]


@runtime_checkable
class ResultBackend(Protocol):
    """Stores one result per task id: the first valid one, which is never overwritten.

    A plug-in may have a class method `from_settings(settings)`, which gets the table `[result_backend]` as
    `penstock.settings.ResultBackendSettings`; without it, the class is called with the keys of its own sub-table.

    Raises: BackendUnavailable for what passes by itself, BackendRefused for what stays, EncodeError for a result that
    cannot be stored at all. After an error nothing half-written is visible, and the call may be repeated.
    """

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one exists, which stays.

        When it returns, the result survives a crash. Saving an identical result again returns True.
        """

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results together; return for each what save() would."""

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""

    def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, or those of one kind, oldest day first, without keeping all of them in memory."""

    async def close(self) -> None:
        """Close connections and threads; may be called twice."""


class Backend(ABC):
    """Checks, encodes and compares results, and translates the errors of the store that a subclass talks to."""

    _needs: ClassVar[tuple[str, str]]  # the name of the sub-table, and the key that it must have
    _errors: tuple[type[Exception], ...]  # of the store, with those of the way to it
    where: str  # without user and password
    _preposition = "in"

    @classmethod
    def from_settings(cls, settings: ResultBackendSettings) -> Self:
        """Return the back-end that the settings describe."""
        make: Callable[..., Self] = cls
        table, key = cls._needs
        if key not in settings.options:
            raise ConfigurationError(
                f"the result back-end {table} needs {key}: set "
                f"PENSTOCK__RESULT_BACKEND__{table.upper()}__{key.upper()}, or {key} or {key}_file in "
                f"[result_backend.{table}]"
            )
        return make(**settings.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one exists, which stays."""
        return (await self.save_many([result]))[0]

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results together; return for each what save() would."""
        entries = [entry_of(result) for result in results]
        firsts = {entry.result.task_id: entry for entry in reversed(entries)}
        with self.translated("save results"):
            # In the order of their ids: two writers with the same ids wait for each other, never in a circle.
            stored = await self._save([firsts[task_id] for task_id in sorted(firsts)])
        return [stored[entry.result.task_id] == entry.raw for entry in entries]

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""
        check_id("task_id", task_id)
        with self.translated("read results"):
            found = await self._find(task_id)
        return None if found is None else found.result

    async def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, or those of one kind, the oldest day first where the store lists them by day."""
        if kind is not None:
            check_name("kind", kind)
        with self.translated("list results"):
            chunks = self._chunks(kind)
            async with aclosing(chunks):
                async for chunk in chunks:
                    for result in chunk:  # sync: yield from chunk
                        yield result  # sync:

    @abstractmethod
    async def close(self) -> None:
        """Close connections and threads; may be called twice."""

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Raise BackendUnavailable where an error of the store passes by itself, BackendRefused where it stays."""
        try:
            yield
        except self._errors as error:
            passes, text = self._classified(error)
            kind = BackendUnavailable if passes else BackendRefused
            raise kind(f"cannot {what} {self._preposition} {self.where}: {text}") from error

    @abstractmethod
    def _classified(self, error: Any) -> tuple[bool, str]:
        """Return whether an error of the store passes by itself, and what it says."""

    @abstractmethod
    async def _save(self, entries: Sequence[StoredResult]) -> Mapping[str, bytes]:
        """Save what is not there yet, each id once; return, by task id, the bytes that are stored now."""

    @abstractmethod
    async def _find(self, task_id: str) -> StoredResult | None:
        """Return what is stored for the id."""

    @abstractmethod
    def _chunks(self, kind: str | None) -> AsyncGenerator[Chunk, None]:
        """Yield the results, some at a time."""


async def results_table(backend: ResultBackend, kind: str | None = None, form: Form = "auto") -> Any:
    """Return the results as a `pyarrow.Table` if pyarrow is installed, else as a list of dicts with the same columns.

    `form` asks for `"arrow"` or `"rows"`. In an Arrow table `data` is JSON, since results of different kinds differ in
    shape; in rows it is what the handler returned.
    """
    if form not in ("auto", "rows", "arrow"):
        raise ConfigurationError(f"form={form!r} must be 'auto', 'rows' or 'arrow'")
    arrow = None if form == "rows" else _arrow(is_required=form == "arrow")
    rows = [_row(result) async for result in backend.iter(kind)]
    return rows if arrow is None else _table(arrow, rows)


def _row(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in COLUMNS} | {"status": result.status.value}


def _arrow(is_required: bool) -> Any:
    try:
        return require("pyarrow", "spark", "an Arrow table")
    except ConfigurationError:
        if is_required:
            raise
        return None


def _table(arrow: Any, rows: list[dict[str, Any]]) -> Any:
    moment = arrow.timestamp("us", "UTC")
    types = {"attempts": arrow.int64(), "started_at": moment, "finished_at": moment}
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in COLUMNS])
    return arrow.Table.from_pylist([row | {"data": _json(row["data"])} for row in rows], schema)


def _json(data: Any) -> str | None:
    return None if data is None else msgspec.json.encode(data).decode()
