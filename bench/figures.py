"""What a measurement returns, and the statistics over rounds."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field

Figures = dict[str, float]

NOISY_WAIT = 0.15
"""Share of a window in which the server waited for a core, above which the window counts as disturbed."""
NOISY_CORES = (os.cpu_count() or 1) / 4
"""Cores that strangers kept busy, above which it does as well: peer and server want a core each."""


@dataclass(frozen=True)
class Sample:
    """One measurement of one peer in one round; `error` is set where it failed."""

    round: int
    test: str
    peer: str
    figures: Figures = field(default_factory=dict)
    error: str = ""

    @property
    def is_noisy(self) -> bool:
        """Tells whether the machine disturbed the measurement."""
        return self.noise > 1

    @property
    def noise(self) -> float:
        """Returns how much the machine disturbed the measurement; above 1 it is not to be trusted."""
        return max(
            self.figures.get("server_wait", 0.0) / NOISY_WAIT,
            self.figures.get("foreign_cores", 0.0) / NOISY_CORES,
        )


class Samples:
    """All samples of a run, looked up by test, peer and figure."""

    def __init__(self, samples: list[Sample] | None = None) -> None:
        self.all: list[Sample] = samples if samples is not None else []

    def add(self, sample: Sample) -> None:
        """Keeps a sample."""
        self.all.append(sample)

    def by_round(self, test: str, peer: str, figure: str, *, with_noisy: bool) -> dict[int, float]:
        """Returns the figure of every round that measured it, with or without the disturbed ones."""
        return {
            sample.round: sample.figures[figure]
            for sample in self.all
            if sample.test == test
            and sample.peer == peer
            and figure in sample.figures
            and (with_noisy or not sample.is_noisy)
        }

    def median(self, test: str, peer: str, figure: str) -> float | None:
        """Returns the median over the quiet rounds, over all where none was quiet, or None."""
        quiet = self.by_round(test, peer, figure, with_noisy=False)
        values = quiet or self.by_round(test, peer, figure, with_noisy=True)
        return statistics.median(values.values()) if values else None

    def failures(self) -> dict[str, list[str]]:
        """Returns for each reason of failure the measurements that it hit."""
        reasons: dict[str, list[str]] = {}
        for sample in self.all:
            if sample.error:
                reasons.setdefault(sample.error, []).append(f"{sample.test} of {sample.peer}")
        return reasons
