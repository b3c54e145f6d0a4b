"""Where a result lies on the file system.

    <root>/<day>/<kind>-<id>.msgpack[.gz]     the result; created by a hard link, which never replaces a file
    <root>/.ids/<bucket>/<id>                 a symbolic link that says `<day>/<kind>.msgpack[.gz]`: where the result of
                                              this id lies or will lie, whoever writes it and on whichever day
    <root>/.incoming/<random>                 what is being written; left behind only by a process that was killed

The symbolic link is read, not followed: without the id its text fits into the inode.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from penstock.results.names import bucket_of, day_of, kind_name, split
from penstock.task import Result

PLAIN, PACKED = ".msgpack", ".msgpack.gz"
_CLAIM = re.compile(r"(\d{4}-\d{2}-\d{2})/([^/]+?)(\.msgpack|\.msgpack\.gz)")


class Place(NamedTuple):
    """Where the result of a task id lies: decided once, by whoever claims the id first."""

    day: str
    kind_name: str
    ending: str

    @property
    def claim(self) -> str:
        """The text of the symbolic link."""
        return f"{self.day}/{self.kind_name}{self.ending}"

    def path(self, root: Path, task_id: str) -> Path:
        """Return the file of the result."""
        return root.joinpath(self.day, f"{self.kind_name}-{task_id}{self.ending}")


def place_for(result: Result, is_packed: bool) -> Place:
    """Return the place that a result asks for."""
    return Place(day_of(result), kind_name(result.kind), PACKED if is_packed else PLAIN)


def place_of(claim: str) -> Place | None:
    """Return the place that a claim names, or None if we never wrote it."""
    found = _CLAIM.fullmatch(claim)
    return Place(found[1], found[2], found[3]) if found else None


def claim_path(root: Path, task_id: str) -> Path:
    """Return the symbolic link of a task id."""
    return root.joinpath(".ids", bucket_of(task_id), task_id)


def parts_of(file_name: str) -> tuple[str, str] | None:
    """Return the kind's name and the task id of a result's file, or None for a foreign one."""
    for ending in (PACKED, PLAIN):
        if file_name.endswith(ending):
            return split(file_name.removesuffix(ending))
    return None
