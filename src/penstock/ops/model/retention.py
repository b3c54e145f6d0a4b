"""What keeps a stream in memory, and what may go."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ops.model.streams import GroupKind, StreamKind


@dataclass(frozen=True, slots=True)
class Pin:
    """What a group still needs of a stream."""

    group: str
    kind: GroupKind
    floor_id: str  # the first id that it needs
    pending: int
    lag: int
    age_s: float  # of the floor
    is_lowest: bool = False  # this one decides what is kept
    is_dead: bool = False  # all its consumers are silent, and it is behind


@dataclass(frozen=True, slots=True)
class RetentionInfo:
    """Who pins a stream's memory, and what could go."""

    stream: str
    kind: StreamKind
    length: int
    memory_bytes: int | None  # estimated by the server, from samples
    floor_id: str  # the first id that some group needs; '' = nothing is finished: there is no group
    finished: int  # entries before the floor
    reclaimable_bytes: int | None  # estimated
    is_exact: bool  # false: `finished` is a lower bound
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which entries a stream keeps in addition to those that its groups need; None = no limit of that kind.

    With `archived_only`, only what the archive has is trimmed: nothing at all where no archive has a group.
    """

    max_age_s: float | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    archived_only: bool = False


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What a policy trims; of a dry run, what it would."""

    stream: str
    entries: int
    bytes: int | None  # estimated
    is_exact: bool
    is_dry_run: bool
    excess: int = 0  # entries beyond the policy; those that groups need stay
    held_by: tuple[str, ...] = ()  # groups that keep the rest
    note: str = ""
