"""Plots as coordinates, which the template draws as SVG: no script, readable without colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.spark.report.figures import TimeAxis

WIDTH, HEIGHT = 1000, 220
LEFT, RIGHT, TOP, BOTTOM = 72, 28, 16, 26
_INNER, _BASE = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
_WIDEST_BAR, _WIDEST_SLOT = 36.0, 72.0  # one bar across the page would show nothing
_FEW_BARS = 12  # each has its value above it
_MOST_LINES = 4  # across the plot
_NICE = (1, 2, 2.5, 5, 10)
Form = Callable[[float], str]


@dataclass(frozen=True)
class Tick:
    """A value on an axis and its name."""

    at: float
    text: str


@dataclass(frozen=True)
class Bar:
    """A bar, and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    label: str
    value: str
    shows_value: bool

    @property
    def middle(self) -> float:
        """Where its value is written."""
        return self.x + self.width / 2


@dataclass(frozen=True)
class Line:
    """A line in pieces: where a value is not known, it has a gap. A piece of one point is a dot."""

    name: str
    pieces: Sequence[str]
    dots: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Plot:
    """Bars or lines between two axes."""

    name: str  # of the element; unique on the page
    title: str
    description: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    base: int = _BASE


def bars_over_time(name: str, title: str, description: str, axis: TimeAxis, values: Sequence[int], form: Form) -> Plot:
    """Return a bar for each interval of the axis."""
    labels = [axis.label(start) for start in axis.starts]
    x_ticks = [Tick(_x_of(axis, at), text) for at, text in axis.ticks]
    return _bars(name, title, description, labels, values, form, _INNER / axis.count, x_ticks)


def bars_by_name(
    name: str, title: str, description: str, labels: Sequence[str], values: Sequence[int], form: Form
) -> Plot:
    """Return a bar for each label, with some of the labels below."""
    slot = min(_WIDEST_SLOT, _INNER / max(1, len(labels)))
    every = math.ceil(_WIDEST_SLOT / slot)
    x_ticks = [Tick(LEFT + (n + 0.5) * slot, label) for n, label in enumerate(labels) if n % every == 0]
    return _bars(name, title, description, labels, values, form, slot, x_ticks)


def _bars(
    name: str,
    title: str,
    description: str,
    labels: Sequence[str],
    values: Sequence[int],
    form: Form,
    slot: float,
    x_ticks: Sequence[Tick],
) -> Plot:
    scale = Scale.of(max(values, default=0), 1)
    width = min(_WIDEST_BAR, max(0.8, slot - 1))
    is_few = sum(1 for value in values if value) <= _FEW_BARS
    bars = []
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        if value:
            y = scale.y(value)
            x = LEFT + number * slot + (slot - width) / 2
            bars.append(Bar(x, y, width, _BASE - y, label, form(value), is_few))
    return Plot(name, title, description, x_ticks, scale.ticks(form), bars)


def lines_over_time(
    name: str,
    title: str,
    description: str,
    axis: TimeAxis,
    series: Sequence[tuple[str, Sequence[float | None]]],
    form: Form,
) -> Plot:
    """Return a line for each series, with a point in the middle of each interval whose value is known."""
    scale = Scale.of(max((value for _, values in series for value in values if value is not None), default=0))
    x_ticks = [Tick(_x_of(axis, at), text) for at, text in axis.ticks]
    lines = []
    for label, values in series:
        runs = [
            [(_x_of(axis, start + axis.width_ms / 2), scale.y(value)) for start, value in run]
            for run in _runs(axis.starts, values)
        ]
        pieces = [" ".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs if len(run) > 1]
        lines.append(Line(label, pieces, [run[0] for run in runs if len(run) == 1]))
    return Plot(name, title, description, x_ticks, scale.ticks(form), lines=lines)


def _runs(starts: Sequence[int], values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for start, value in zip(starts, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((start, value))
    return [run for run in runs if run]


def _x_of(axis: TimeAxis, at: float) -> float:
    return LEFT + (at - axis.low) / (axis.high - axis.low) * _INNER


@dataclass(frozen=True)
class Scale:
    """The vertical axis: from 0 to a round number, with a few round numbers between."""

    step: float
    steps: int

    @classmethod
    def of(cls, top: float, least_step: float = 0.0) -> Scale:
        """Return the scale for values up to `top`; counts have no step below 1."""
        if top <= 0:
            return cls(max(1.0, least_step), 1)
        raw = top / _MOST_LINES
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * nice for nice in _NICE if unit * nice >= raw * (1 - 1e-9))
        if step < least_step or (least_step and step % 1):
            step = float(max(least_step, math.ceil(step)))
        return cls(step, math.ceil(top / step - 1e-9))

    def y(self, value: float) -> float:
        """Return the height of a value; what is negative, since clocks differ, is drawn as 0."""
        return _BASE - max(0.0, value) / (self.step * self.steps) * (_BASE - TOP)

    def ticks(self, form: Form) -> list[Tick]:
        """Return the lines across the plot."""
        return [Tick(self.y(n * self.step), form(n * self.step) if n else "0") for n in range(self.steps + 1)]
