"""Plots as SVG: small, without a script, readable without colours, each with a title and a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 180
_LEFT, _BOTTOM, _TOP = 64, 24, 10
_FEW = 8  # labels of which the middle ones would touch the others
_SIGN = 6.5  # the width of a letter
_MANY = 10  # of which a half is worth a line
_DASHES = ("", "6 3", "2 3")  # lines differ by more than their colour


@dataclass(frozen=True)
class Plot:
    """What is plotted: a value, or None, at each label, once or for several lines."""

    name: str  # of the element; unique on the page
    title: str
    description: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[float | None]]]
    form: str = "{:,.0f}"  # of the values on the axis

    @property
    def top(self) -> float:
        """The greatest value."""
        return max((value for _, values in self.series for value in values if value is not None), default=0.0)


def bars(plot: Plot) -> str:
    """Return bars, one series only; each tells its label and value."""
    step = (_WIDTH - _LEFT) / max(1, len(plot.labels))
    drawn = []
    for number, (label, value) in enumerate(zip(plot.labels, plot.series[0][1], strict=True)):
        if not value:
            continue
        height = _scaled(value, plot.top)
        x, y = _LEFT + number * step, _HEIGHT - _BOTTOM - height
        told = escape(f"{label}: {plot.form.format(value)}")
        drawn.append(
            f'<rect class="s0" x="{x:.1f}" y="{y:.1f}" width="{max(0.5, step - 1):.1f}" height="{height:.1f}">'
            f"<title>{told}</title></rect>"
        )
    return _framed(plot, "".join(drawn))


def lines(plot: Plot) -> str:
    """Return lines; where a value is not known, a line has a gap."""
    step = (_WIDTH - _LEFT) / max(1, len(plot.labels))
    drawn = []
    for number, (_, values) in enumerate(plot.series):
        for run in _runs(values):
            points = " ".join(
                f"{_LEFT + (n + 0.5) * step:.1f},{_HEIGHT - _BOTTOM - _scaled(v, plot.top):.1f}" for n, v in run
            )
            drawn.append(f'<polyline class="l{number}" stroke-dasharray="{_DASHES[number % 3]}" points="{points}"/>')
            # A run of one point would be no line at all.
            drawn += [_dot(number, point) for point in points.split(" ")] if len(run) == 1 else []
    return _framed(plot, "".join(drawn))


def _dot(number: int, point: str) -> str:
    x, _, y = point.partition(",")
    return f'<circle class="s{number}" cx="{x}" cy="{y}" r="2"/>'


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((number, value))
    return [run for run in runs if run]


def _scaled(value: float, top: float) -> float:
    return max(0.0, value) / top * (_HEIGHT - _BOTTOM - _TOP) if top > 0 else 0.0


def _labels(labels: Sequence[str]) -> str:
    """Return the first and the last label, and those between them that there is room for."""
    step, last, y = (_WIDTH - _LEFT) / len(labels), len(labels) - 1, _HEIGHT - 6
    is_roomy = max(map(len, labels)) * _SIGN <= step
    inner = range(1, last) if is_roomy else [len(labels) * n // 4 for n in (1, 2, 3) if last > _FEW]
    places = [(n, "middle", _LEFT + (n + 0.5) * step, ' class="inner"') for n in inner]
    if is_roomy:
        places += [(n, "middle", _LEFT + (n + 0.5) * step, "") for n in sorted({0, last})]
    else:
        places += [(0, "start", _LEFT, ""), (last, "end", _WIDTH, "")]
    return "".join(
        f'<text{kind} x="{x:.1f}" y="{y}" text-anchor="{side}">{escape(labels[n])}</text>'
        for n, side, x, kind in places
    )


def _framed(plot: Plot, drawn: str) -> str:
    base = _HEIGHT - _BOTTOM
    axis = f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}"/>'
    high = f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{escape(plot.form.format(plot.top))}</text>'
    low = f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
    if plot.top >= _MANY:
        middle = base - _scaled(plot.top / 2, plot.top)
        axis += f'<line class="axis" x1="{_LEFT}" y1="{middle:.1f}" x2="{_WIDTH}" y2="{middle:.1f}"/>'
        half = escape(plot.form.format(plot.top / 2))
        high += f'<text class="inner" x="{_LEFT - 6}" y="{middle + 4:.1f}" text-anchor="end">{half}</text>'
    ends = _labels(plot.labels) if plot.labels else ""
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-labelledby="{plot.name}-t {plot.name}-d">'
        f'<title id="{plot.name}-t">{escape(plot.title)}</title>'
        f'<desc id="{plot.name}-d">{escape(plot.description)}</desc>{axis}{high}{low}{ends}{drawn}</svg>'
    )
