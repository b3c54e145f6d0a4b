"""ResultBackend, the contract of every back-end, and Backend, what those of Penstock itself share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from penstock.errors import BackendRefused, BackendUnavailable, ConfigurationError
from penstock.keys import check_name
from penstock.results.entry import Entry, entry_of
from penstock.settings import ResultBackendSettings
from penstock.task import Result, check_id

Chunk = list[Result]


@runtime_checkable
class ResultBackend(Protocol):
    """Keeps one result per task id: the first valid one, which nobody overwrites.

    A plug-in may have a class method `from_settings(settings)`, which gets the table `[result_backend]` as
    `penstock.settings.ResultBackendSettings`; without it, the class is called with the keys of its own sub-table.

    Raises: BackendUnavailable for what passes by itself, BackendRefused for what stays, EncodeError for a result that
    cannot be stored at all. After an error nothing half-written is visible, and the call may be repeated.
    """

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one is there, which stays.

        When it returns, the result survives a crash. Saving an identical result again returns True.
        """

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results at the price of few; return for each what save() would."""

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""

    def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, or those of one kind, the oldest day first, without holding all of them in memory."""

    async def close(self) -> None:
        """Let go of connections and threads; may be called twice."""


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
                f"the result back-end {table} needs a {key}: set PENSTOCK__RESULT_BACKEND__{table.upper()}__"
                f"{key.upper()}, or {key} or {key}_file under [result_backend.{table}]"
            )
        return make(**settings.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one is there, which stays."""
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
        """Let go of connections and threads; may be called twice."""

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Raise BackendUnavailable where an error of the store passes by itself, BackendRefused where it stays."""
        try:
            yield
        except self._errors as error:
            passes, text = self._judged(error)
            kind = BackendUnavailable if passes else BackendRefused
            raise kind(f"cannot {what} {self._preposition} {self.where}: {text}") from error

    @abstractmethod
    def _judged(self, error: Any) -> tuple[bool, str]:
        """Return whether an error of the store passes by itself, and what it says."""

    @abstractmethod
    async def _save(self, entries: Sequence[Entry]) -> Mapping[str, bytes]:
        """Save what is not there yet, each id once; return, by task id, the bytes that are stored now."""

    @abstractmethod
    async def _find(self, task_id: str) -> Entry | None:
        """Return what is stored for the id."""

    @abstractmethod
    def _chunks(self, kind: str | None) -> AsyncGenerator[Chunk, None]:
        """Yield the results, some at a time."""
