"""What a balancer tells its application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.balancer.messages import Info, LBSInfo


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened to a data stream."""

    type: ClassVar[int] = 0
    """The number of the kind, as in redis-stream-client-go."""

    payload: LBSInfo
    additional_info: Info | None = None


@dataclass(frozen=True, slots=True)
class StreamAdded(Notice):
    """This consumer owns a data stream from now on; `token` is greater than that of every owner before it."""

    type: ClassVar[int] = 1
    token: int = 0


@dataclass(frozen=True, slots=True)
class StreamDisowned(Notice):
    """Another consumer owns the data stream now: stop working on it."""

    type: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class StreamExpired(Notice):
    """The owner of a data stream is gone: claim it."""

    type: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class StreamTerminated(Notice):
    """The last notice; `additional_info["info"]` says why."""

    type: ClassVar[int] = 4


def terminated(reason: str) -> StreamTerminated:
    """Return the last notice."""
    return StreamTerminated(LBSInfo("", ""), {"info": reason})
