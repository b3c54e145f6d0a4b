"""FSBackend: results as files."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Self

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.results.batch import Batch
from penstock.results.fs_store import FSStore
from penstock.runtime.aio import Threads
from penstock.settings import ResultBackendSettings
from penstock.task import Result, check_id

_THREADS = 4
_CHUNK = 200


class FSBackend:
    """Keeps each result in a file `<root>/<day>/<kind>-<id>.msgpack`, or `.msgpack.gz` with `compress`.

    The day is that of `finished_at`, in UTC. Several processes, also on several machines if the file system is shared
    and knows hard and symbolic links, may use one root. A day that is no longer wanted may be removed as a folder; the
    small links in `<root>/.ids` should stay.
    """

    def __init__(self, root: str | os.PathLike[str] = ".penstock/results", compress: bool = False) -> None:
        if not isinstance(compress, bool):
            raise ConfigurationError(f"compress={compress!r} must be True or False")
        self._store = FSStore(Path(root), compress)
        self._threads = Threads(_THREADS)

    @classmethod
    def from_settings(cls, settings: ResultBackendSettings) -> Self:
        """Return the back-end that the settings describe."""
        return cls(**{"root": settings.root, "compress": settings.compress, **settings.options})

    def __repr__(self) -> str:
        return f"FSBackend({str(self._store.root)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one is there, which stays."""
        return (await self.save_many([result]))[0]

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results, synced together; return for each what save() would."""
        batch = Batch(results)
        return batch.outcomes(await self._threads.run(self._store.save, batch.entries))

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""
        check_id("task_id", task_id)
        return await self._threads.run(self._store.get, task_id)

    async def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, the oldest day first; within a day in no order. Torn and foreign files are skipped."""
        if kind is not None:
            check_name("kind", kind)
        found = self._store.scan(kind)
        while chunk := await self._threads.run(_take, found):
            for result in chunk:  # sync: yield from chunk
                yield result  # sync:

    async def close(self) -> None:
        """Let the threads end."""
        self._threads.close()


def _take(found: Iterator[Result]) -> list[Result]:
    return list(itertools.islice(found, _CHUNK))
