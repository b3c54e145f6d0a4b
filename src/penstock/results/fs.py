"""FSBackend: results as files."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.errors import ConfigurationError
from penstock.results.backend import Backend, Chunk
from penstock.results.entry import StoredResult
from penstock.results.fs_store import FSStore, is_transient_error
from penstock.runtime.aio import Threads
from penstock.settings import ResultBackendSettings
from penstock.task import Result

_THREADS = 4
_CHUNK = 200


class FSBackend(Backend):
    """Stores each result in a file `<root>/<day>/<kind>-<id>.msgpack`, or `.msgpack.gz` with `compress`.

    The day is that of `finished_at`, in UTC. Several processes, also on several machines if the file system is shared
    and knows hard and symbolic links, may use one root. A day that is no longer wanted may be removed as a folder; the
    small links in `<root>/.ids` should stay. Within a day iter() yields in no order, and skips torn and foreign files.
    """

    _errors = (OSError,)
    _preposition = "under"

    def __init__(self, root: str | os.PathLike[str] = ".penstock/results", compress: bool = False) -> None:
        if not isinstance(compress, bool):
            raise ConfigurationError(f"compress={compress!r} must be True or False")
        self.store = FSStore(Path(root), compress)
        self.where = str(self.store.root)
        self._threads = Threads(_THREADS)

    @classmethod
    def from_settings(cls, settings: ResultBackendSettings) -> Self:
        """Return the back-end that the settings describe."""
        return cls(**{"root": settings.root, "compress": settings.compress, **settings.options})

    async def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    async def _save(self, entries: Sequence[StoredResult]) -> Mapping[str, bytes]:
        return await self._threads.run(self.store.save, entries)

    async def _find(self, task_id: str) -> StoredResult | None:
        return await self._threads.run(self.store.get, task_id)

    async def _chunks(self, kind: str | None) -> AsyncGenerator[Chunk, None]:
        found = self.store.scan(kind)
        while chunk := await self._threads.run(_take, found):
            yield chunk

    def _classified(self, error: OSError) -> tuple[bool, str]:
        return is_transient_error(error), str(error)


def _take(found: Iterator[Result]) -> Chunk:
    return list(itertools.islice(found, _CHUNK))
