"""The page: figures as one file of HTML that fetches nothing and runs nothing, from templates/report.html."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode, urlsplit

from penstock import __version__, envelope
from penstock.errors import ConfigurationError
from penstock.shown import shown
from penstock.spark.report.figures import P95, SHARE_NAMES, Aggregate, Figures, Percentiles, Window
from penstock.spark.report.plots import Plot, bars_by_name, bars_over_time, lines_over_time
from penstock.spark.report.target import Target
from penstock.units import NOTHING, as_datetime, count, duration, size

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise ConfigurationError(
        f"a report needs Jinja2, which cannot be imported ({error}): pip install 'penstock[spark]'"
    ) from error

_MOST_LINES = 20
_P50 = SHARE_NAMES.index("p50")
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def render(figures: Figures, target: Target, window: Window, made_ms: int, dashboard: str | None = None) -> str:
    """Return the page; `dashboard` is the address of one to which dead letters, groups and entries are linked."""
    page = _Page(figures, target, window, check_dashboard(dashboard))
    text = _environment().get_template("report.html").render(
        page=page, figures=figures, target=target, window=window, made_ms=made_ms, version=__version__,
        share_names=SHARE_NAMES, share_columns=_columns(""), run_columns=_columns("run "), style=_style(), url=page.url,
    )  # fmt: skip
    return f"{text.strip()}\n"


def _columns(prefix: str) -> list[tuple[str, str]]:
    return [(f"{prefix}{name}", "n") for name in SHARE_NAMES]


def check_dashboard(address: str | None) -> str | None:
    """Return the address of a dashboard without its last slash; raise ConfigurationError for what is none."""
    if address is None:
        return None
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"--dashboard {address!r} must be the address of a dashboard, such as http://host:8080"
        )
    return address.rstrip("/")


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock.spark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=count, duration=duration, moment=_moment, percent=_percent, quoted=shlex.quote, size=size, span=_span,
        visible=shown,
    )  # fmt: skip
    return made


def _style() -> Markup:
    """Return the look of the dashboard, and what only a report has."""
    package = files("penstock")
    looks = (
        package / "dashboard" / "static" / "dashboard.css",
        package / "spark" / "report" / "templates" / "report.css",
    )
    return Markup("\n".join(look.read_text(encoding="utf-8") for look in looks))  # noqa: S704  our own files


def _moment(ms: int) -> str:
    """Return a time to the second; the heading says that it is UTC."""
    known = as_datetime(ms)
    return f"{ms} ms" if known is None else f"{known:%Y-%m-%d %H:%M:%S}"


def _span(ms: int | None) -> str:
    """Return a duration that may be negative, since clocks differ."""
    if ms is None:
        return NOTHING
    return f"-{duration(-ms / 1000)}" if ms < 0 else duration(ms / 1000)


def _percent(share: float | None) -> str:
    """Return a share; one that is small is not shown as none, nor one of almost all as all."""
    if share is None:
        return NOTHING
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.9999 < share < 1:
        return "> 99.99 %"
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + " %"


@dataclass(frozen=True)
class _Attempts:
    """Results and dead letters after some number of attempts."""

    label: str
    results: int
    dead: int
    share: float  # of the most frequent number


class _Page:
    """What the template needs in addition to the figures."""

    def __init__(self, figures: Figures, target: Target, window: Window, dashboard: str | None) -> None:
        self._figures, self._target, self._window, self._dashboard = figures, target, window, dashboard
        self._axis = figures.axis

    # --- links ----------------------------------------------------------------------------------

    @property
    def has_dashboard(self) -> bool:
        """Whether there are links."""
        return self._dashboard is not None

    def url(self, path: str, **params: str) -> str:
        """Return the address of a page of the dashboard."""
        given = {name: value for name, value in params.items() if value}
        return f"{self._dashboard}{path}?{urlencode(given, errors='replace')}"

    @property
    def since(self) -> str:
        """The beginning of the window as commands and the dashboard read it."""
        return _iso(self._window.low)

    @property
    def until(self) -> str:
        """The end of the window, likewise."""
        return _iso(math.ceil(self._window.high / 1000) * 1000)

    # --- numbers --------------------------------------------------------------------------------

    @property
    def zoom(self) -> bool:
        """Whether the plots show a part of the window only."""
        return self._axis.high - self._axis.low < self._window.high - self._window.low

    @property
    def failure_rate(self) -> float | None:
        """The share of messages of the window that died in it; None if it cannot be known."""
        return _share(self._figures.failures.count, self._figures.messages.whole.count)

    @property
    def lag(self) -> Any:
        """The greatest lag of a group; None without a group."""
        return max((group.lag for group in self._figures.groups), key=lambda lag: lag.count, default=None)

    @property
    def kinds(self) -> list[tuple[Aggregate, int, float | None]]:
        """The most frequent kinds: each with the messages that died, and their share."""
        failed = self._figures.failures.by_kind
        found = self._figures.messages.of("kind")[:_MOST_LINES]
        counts = [failed.get(None if each.name is None else str(each.name), 0) for each in found]
        return [(each, dead, _share(dead, each.count)) for each, dead in zip(found, counts, strict=True)]

    @property
    def slowest(self) -> list[Aggregate]:
        """The kinds whose runs took longest."""
        return self._figures.results.of("kind")[:_MOST_LINES] if self._figures.results else []

    @property
    def known_times(self) -> list[tuple[str, Percentiles, int]]:
        """The spans of time that are known, each with the number of those that could have it."""
        figures = self._figures
        made, dead = figures.messages.whole, figures.dead.whole
        found = [
            ("created → in the stream", made.second, made.count),
            ("in the stream → dead letter", dead.first, dead.count),
        ]
        if figures.results is not None:
            whole = figures.results.whole
            found.append(("created → result (end to end)", whole.first, whole.count))
            found.append(("started → result (the last run)", whole.second, whole.count))
        return found

    @property
    def attempts(self) -> list[_Attempts]:
        """Results and dead letters by the number of attempts."""
        results = Counter({} if self._figures.results is None else self._figures.results.counts("attempts"))
        dead = Counter(self._figures.dead.counts("attempts"))
        both = results + dead
        names = sorted(both, key=lambda name: (name is None, envelope.number(str(name)) or 0))
        labels: dict[object, str] = {"10": "10 or more", None: "unknown"}
        most = max(both.values(), default=0)
        return [_Attempts(labels.get(n, str(n)), results[n], dead[n], both[n] / most) for n in names]

    # --- plots ----------------------------------------------------------------------------------

    @property
    def every(self) -> str:
        """The length of an interval, as what comes after `per`."""
        unit, name = next((unit, name) for unit, name in _UNITS if self._axis.width_ms % unit == 0)
        number = self._axis.width_ms // unit
        return name if number == 1 else f"{number} {name}s"

    @property
    def flow(self) -> Plot:
        """Messages over time."""
        counts = self._over_time("messages")
        busiest = max(counts)
        a_second = busiest / (self._axis.width_ms / 1000)
        description = f"Messages published per {self.every}, at most {busiest:,} ({a_second:,.3g} a second)."
        return bars_over_time("flow", "Messages over time", description, self._axis, counts, count)

    @property
    def dead(self) -> Plot:
        """Dead letters over time."""
        description = f"Dead letters per {self.every}."
        return bars_over_time("dead", "Dead letters over time", description, self._axis, self._over_time("dead"), count)

    def _over_time(self, what: str) -> list[int]:
        by_start = getattr(self._figures, what).counts("bucket")
        return [by_start.get(start, 0) for start in self._axis.starts]

    def table_over_time(self, what: str) -> list[tuple[str, Aggregate]]:
        """Return the intervals in which something happened, and what."""
        by_start = {each.name: each for each in getattr(self._figures, what).of("bucket")}
        starts = [start for start in self._axis.starts if start in by_start]
        return [(self._axis.label(start), by_start[start]) for start in starts]

    @property
    def latency(self) -> Plot | None:
        """The end-to-end latency over time; None if it is known of nothing."""
        if self._figures.results is None or not self._figures.results.whole.first.count:
            return None
        by_start = {each.name: each.first for each in self._figures.results.of("bucket")}
        series = [(name, self._series(by_start, index)) for index, name in ((_P50, "p50"), (P95, "p95"))]
        description = f"Time from the creation of a task to its result, per {self.every}: p50, and p95 dashed."
        return lines_over_time("latency", "End-to-end latency over time", description, self._axis, series, duration)

    def _series(self, by_start: dict[Any, Percentiles], index: int) -> Sequence[float | None]:
        values = [by_start.get(start, Percentiles()).at(index) for start in self._axis.starts]
        return [None if value is None else value / 1000 for value in values]

    @property
    def archive(self) -> Plot:
        """What is archived, by day."""
        assert self._figures.coverage is not None
        days = self._figures.coverage.days
        description = "Entries of each day in the archive, of all time."
        labels, rows = [day.date for day in days], [day.rows for day in days]
        return bars_by_name("archive", "Archived entries by day", description, labels, rows, count)


def _share(part: int, whole: int) -> float | None:
    # Of messages that were trimmed there may be dead letters still: then the share is not known.
    return part / whole if whole and part <= whole else None


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
