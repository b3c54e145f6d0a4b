"""The numbers of a queue: what exporters and dashboards show."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaneGauges:
    """The numbers of one lane."""

    stream: str
    in_hand: int
    waiting: int  # for their next run
    idle_max_s: float  # of what is in hand


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """The numbers of one queue; those by kind count since the queue exists."""

    name: str
    stream: str
    open: int
    scheduled: int
    dead_letters: int
    results: int
    added: dict[str, int] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    redriven: dict[str, int] = field(default_factory=dict)
    lanes: tuple[LaneGauges, ...] = ()
    dead_trimmed: int = 0  # dead letters that were removed beyond their limits

    @property
    def open_by_kind(self) -> dict[str, int]:
        """Open tasks by kind: what was added and redriven, without what was acknowledged or given up."""
        kinds = {*self.added, *self.acked, *self.dead, *self.redriven}
        return {
            kind: max(
                0,
                self.added.get(kind, 0) + self.redriven.get(kind, 0) - self.acked.get(kind, 0) - self.dead.get(kind, 0),
            )
            for kind in sorted(kinds)
        }
