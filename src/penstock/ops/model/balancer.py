"""Balanced services, and who owns what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BalancedStream:
    """A data stream of a balanced service."""

    service: str
    data_stream: str
    entry_id: str
    owner: str  # '' = it waits for an owner
    lock_ms: int | None  # time left; None = not held
    deliveries: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class BalancerPeer:
    """A consumer of a balanced service."""

    name: str
    owned: int
    capacity: int  # 0 = any number
    alive_ms: int  # for which it still counts as alive; negative = it is gone


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """One balanced service."""

    name: str
    streams: int  # handed out and not finished
    waiting: int  # new, without an owner so far
    peers: tuple[BalancerPeer, ...] = ()
    dead_letters: int = 0
