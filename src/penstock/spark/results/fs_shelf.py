"""Results in files: a task reads some days, or a part of the files of one day."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.spark.results.shelf import Share, Sizes, shared
from penstock.spark.results.wanted import Wanted
from penstock.sync.results.fs import FSBackend
from penstock.task import Result

_NAME_BYTES = 64  # that a file takes in the size of its folder, about; it need not be right
_CHUNK = 500
_SKEW = timedelta(days=1)  # that clocks may differ by, generously


@dataclass(frozen=True)
class FSShelf:
    """The folder of an FSBackend."""

    root: str

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[Share]:
        """Share the days out; no file is looked at."""
        root = Path(self.root)
        if not root.is_dir():
            raise ConfigurationError(f"there are no results at {root}: it is no folder")
        backend = FSBackend(root)
        with backend.translated("list results"):
            folders = [(day, root / day) for day in backend.store.days()]
            sizes_of = [(day, _rows(folder)) for day, folder in folders if _may_hold(folder, wanted)]
        return shared(sizes_of, sizes.min_parts, sizes.max_rows)

    def read(self, part: Share, wanted: Wanted) -> Iterator[Sequence[Result]]:
        """Yield the results of some files."""
        store = FSBackend(self.root).store
        for day in part.folders:
            found = store.scan_day(day, wanted.only_kind, part.takes)
            while chunk := list(itertools.islice(found, _CHUNK)):
                yield chunk


def _rows(folder: Path) -> int:
    return max(1, folder.stat().st_size // _NAME_BYTES)


def _may_hold(folder: Path, wanted: Wanted) -> bool:
    """Tell whether results of the time can lie in a folder.

    The name does not say it: a result lies on the day of whoever claimed its id first, which may be weeks before it was
    finished. But it was finished before it was saved, and the folder was last changed when something was saved.
    """
    return wanted.since is None or folder.stat().st_mtime >= (wanted.since - _SKEW).timestamp()
