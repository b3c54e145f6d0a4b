"""Results in an object store: a task reads the marks of one kind and day, and the results that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC

from penstock.results.entry import kind_name
from penstock.settings import ResultBackendSettings
from penstock.spark.results.shelf import Share, Sizes, shared
from penstock.spark.results.wanted import Wanted
from penstock.sync.results.s3 import S3Backend
from penstock.task import Result


@dataclass(frozen=True)
class S3Shelf:
    """The bucket of an S3Backend."""

    settings: ResultBackendSettings

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[Share]:
        """List kinds and days, and nothing below them."""
        backend = S3Backend.from_settings(self.settings)
        with backend.translated("list results"):
            folders = [folder for folder in backend.folders() if _may_hold(folder, wanted)]
        # Only a listing could tell how much lies in a folder: each is a task, or several if so many are asked for.
        return shared([(folder, 1) for folder in sorted(folders)], max(sizes.min_parts, len(folders)), 1)

    def read(self, part: Share, wanted: Wanted) -> Iterator[Sequence[Result]]:  # noqa: ARG002  the reader looks itself
        """Yield the results of some marks."""
        backend = S3Backend.from_settings(self.settings)
        with backend.translated("list results"):
            for folder in part.folders:
                yield from backend.chunks(folder, part.takes)


def _may_hold(folder: str, wanted: Wanted) -> bool:
    """Tell whether results that are wanted can lie in `kinds/<kind>/<day>`; a result counts on its own day only."""
    _, kind, day = folder.split("/")
    if wanted.kinds is not None and kind not in {kind_name(name) for name in wanted.kinds}:
        return False
    if wanted.since is not None and day < wanted.since.astimezone(UTC).date().isoformat():
        return False
    return wanted.until is None or day <= wanted.until.astimezone(UTC).date().isoformat()
