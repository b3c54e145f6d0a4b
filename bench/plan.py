"""How much is measured: rounds, window lengths and the sizes of the pending lists."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. Windows are lengths aimed at: a peer's expected pace turns them into messages."""

    rounds: int
    publish_s: float
    drain_s: float
    paced_s: float
    """The window in which latency is timed."""
    counted_s: float
    """The window after it in which commands are counted."""
    rate: int = 200
    """Messages a second where latency is measured."""
    pending: tuple[int, int] = (10_000, 200_000)
    """Entries that another consumer holds, small and large."""
    large: int = 100_000
    """Bytes of the message whose memory is measured."""


FULL = Plan(rounds=3, publish_s=1.0, drain_s=1.5, paced_s=4.0, counted_s=2.0)
QUICK = Plan(rounds=1, publish_s=0.4, drain_s=0.6, paced_s=2.0, counted_s=1.0)
