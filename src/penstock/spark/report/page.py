"""The page: figures as one file of HTML that fetches nothing and runs nothing."""

from __future__ import annotations

from penstock import __version__
from penstock.spark.report.figures import SHARE_NAMES, Figures
from penstock.spark.report.markup import note, safe, section, tiles
from penstock.spark.report.moments import length, shown, size
from penstock.spark.report.sections import (
    archive,
    attempts,
    dead_letters,
    kinds,
    latency,
    payloads,
    throughput,
)
from penstock.spark.report.style import STYLE
from penstock.spark.report.subject import Subject
from penstock.spark.report.window import Window

# Nothing may be loaded or run, whatever the texts of messages say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_P95 = SHARE_NAMES.index("p95")
_ALWAYS = (
    "Dead letters are those that died in this time, whenever they were published.",
    (
        "A message that was acknowledged leaves no time behind in Redis: how long it took is known only where a result "
        "tells when it ended."
    ),
    (
        "The making of a message is the time in its id, if that was made by Penstock (UUID version 7): the producer's "
        "clock. The end of a run is the worker's clock. Where clocks differ, so do these figures, and may be negative."
    ),
    (
        "Percentiles are approximate beyond 10,000 values (Spark's percentile_approx): off by a ten-thousandth of the "
        "ranks at most."
    ),
)


def render(figures: Figures, subject: Subject, window: Window, made_ms: int) -> str:
    """Return the page."""
    title = f"{subject.stream}: {shown(window.low)} to {shown(window.high)}"
    parts = [
        _summary(figures),
        *(note(text, is_warning=True) for text in figures.notes),
        throughput(figures, window),
        latency(figures, window),
        attempts(figures),
        dead_letters(figures, window),
        kinds(figures),
        payloads(figures),
        archive(figures),
        _sources(figures, subject, made_ms),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{safe(_POLICY)}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{safe(subject.stream)}</h1>"
        f'<p class="when">{shown(window.low)} to {shown(window.high)}</p>{"".join(parts)}</main></body></html>\n'
    )


def _summary(figures: Figures) -> str:
    results = figures.results
    shown_first = [
        ("messages published", f"{figures.messages.whole.count:,}"),
        ("dead letters", f"{figures.dead.whole.count:,}"),
        ("results", "not known" if results is None else f"{results.whole.count:,}"),
    ]
    if results is not None and results.whole.first.values:
        shown_first.append(("p95 end to end", length(results.whole.first.values[_P95])))
    if figures.payloads:
        shown_first.append(("the biggest payload", size(figures.payloads[0].bytes)))
    return tiles(shown_first)


def _sources(figures: Figures, subject: Subject, made_ms: int) -> str:
    where = "from the archive and from Redis behind it" if subject.archive is not None else "from Redis"
    said = [
        f"Messages are the entries of the stream whose ids lie in this time, {where}; what was deleted is gone.",
        *_ALWAYS,
    ]
    if figures.results is not None:
        said.append("Results are those that ended in this time. Tasks that were delayed on purpose count their delay.")
    made = f"Made by Penstock {__version__} at {shown(made_ms)}."
    return section("What this is computed from", *(note(text) for text in (*said, made)))
