"""What Spark's checkpoint says of a batch: the ranges of ids that it takes.

Spark writes the end of a batch into `offsets/<number>` before it runs the batch: a line with a version, one with
settings, and one for each source. Ours tells the beginning as well (reading/offsets.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.reading.offsets import Offsets

_LINES_BEFORE = 2


def offsets_of(checkpoint: Path, batch: int) -> Offsets:
    """Return what a batch takes of each stream."""
    file = checkpoint / "offsets" / str(batch)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return Offsets.load(json.loads(lines[_LINES_BEFORE]))
    except (OSError, ValueError, IndexError) as error:
        raise ArchiveDamaged(f"the checkpoint does not say what batch {batch} is: {file}: {error}") from error


def last_committed(checkpoint: Path) -> Offsets | None:
    """Return how far Spark believes the archive to be; None where it has committed nothing."""
    done = _numbers(checkpoint / "commits")
    return offsets_of(checkpoint, max(done)) if done else None


def _numbers(place: Path) -> list[int]:
    if not place.is_dir():
        return []
    return [int(file.name) for file in place.iterdir() if file.name.isdigit()]
