"""The sections of the page: each a plot or two and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock import envelope
from penstock.spark.report.figures import SHARE_NAMES, Figures, Group, Spread
from penstock.spark.report.markup import Text, folded, note, section, table
from penstock.spark.report.moments import brief, length, size
from penstock.spark.report.svg import Plot, bars, lines
from penstock.spark.report.window import Window

_MOST_LINES = 20
_NOTHING = "Nothing in this time."


def throughput(figures: Figures, window: Window) -> str:
    """Messages over time."""
    if not figures.messages.whole.count:
        return section("Throughput", note(_NOTHING))
    by_start = {group.name: group for group in figures.messages.of("bucket")}
    found = [by_start.get(start) for start in window.starts]
    every = length(window.width_ms)
    counts = [0 if group is None else group.count for group in found]
    busiest = max(counts)
    rate = busiest / (window.width_ms / 1000)
    told = f"Messages published in each {every}; {busiest:,} in the busiest one, which is {rate:,.3g} a second."
    plot = Plot("flow", "Messages over time", told, _labels(window), [("messages", counts)])
    rows = [
        (label, f"{group.count:,}", size(group.bytes))
        for label, group in zip(_labels(window), found, strict=True)
        if group is not None
    ]
    return section(
        "Throughput", bars(plot), note(told), folded("Table", table("Messages", ("from", "messages", "bytes"), rows))
    )


def latency(figures: Figures, window: Window) -> str:
    """How long things took, of those of which it is known."""
    made, dead, results = figures.messages.whole, figures.dead.whole, figures.results
    spreads = [
        ("made → in the stream", made.second, made.count),
        ("in the stream → given up (dead letters)", dead.first, dead.count),
    ]
    if results is not None:
        spreads.append(("made → result (end to end)", results.whole.first, results.whole.count))
        spreads.append(("begun → result (the last run)", results.whole.second, results.whole.count))
    rows = [(name, f"{s.count:,} of {total:,}", *_lengths(s)) for name, s, total in spreads]
    parts = [table("Times that are known", ("", "known of", *SHARE_NAMES), rows)]
    if results is None:
        parts.insert(
            0,
            note(
                "The end-to-end latency of acknowledged messages is not known: this stream has no results. Only dead "
                "letters tell when they ended."
            ),
        )
    else:
        parts.insert(0, _over_time(results.of("bucket"), window))
    return section("Latency", *parts)


def _over_time(groups: Sequence[Group], window: Window) -> str:
    by_start = {group.name: group.first.values for group in groups}
    series = []
    for place, name in ((0, "p50"), (2, "p95")):
        values = [by_start.get(start) or None for start in window.starts]
        series.append((name, [None if v is None else v[place] / 1000 for v in values]))
    told = f"Seconds from the making of a task to its result, in each {length(window.width_ms)}: p50, and p95 dashed."
    if not any(value is not None for _, values in series for value in values):
        return note("No result tells when its task was made.")
    plot = Plot("latency", "End-to-end latency over time", told, _labels(window), series, "{:,.3g} s")
    rows = [
        (label, *(length(None if v is None else round(v * 1000)) for v in pair))
        for label, pair in zip(_labels(window), zip(*(values for _, values in series), strict=True), strict=True)
        if pair[0] is not None
    ]
    return lines(plot) + note(told) + folded("Table", table("End to end", ("from", "p50", "p95"), rows))


def attempts(figures: Figures) -> str:
    """How often messages were tried."""
    of_dead = {str(group.name): group.count for group in figures.dead.of("attempts")}
    of_results = {str(g.name): g.count for g in figures.results.of("attempts")} if figures.results else {}
    names = sorted(
        {*of_dead, *of_results}, key=lambda name: (envelope.number(name) is None, envelope.number(name) or 0)
    )
    if not names:
        return section("Attempts", note("Not known: attempts are told by results and by dead letters."))
    labels = [{"10": "10 or more", "None": "not told"}.get(name, name) for name in names]
    rows = [
        (label, f"{of_results.get(name, 0):,}", f"{of_dead.get(name, 0):,}")
        for name, label in zip(names, labels, strict=True)
    ]
    counts = [of_results.get(name, 0) + of_dead.get(name, 0) for name in names]
    told = "Results and dead letters by the number of attempts; messages without a result are not in it."
    plot = Plot("attempts", "Attempts", told, labels, [("messages", counts)])
    return section(
        "Attempts", bars(plot), note(told), table("By attempts", ("attempts", "results", "dead letters"), rows)
    )


def dead_letters(figures: Figures, window: Window) -> str:
    """What was given up, and why."""
    total = figures.dead.whole.count
    if not total:
        return section("Dead letters", note("None in this time."))
    by_start = {group.name: group.count for group in figures.dead.of("bucket")}
    counts = [by_start.get(start, 0) for start in window.starts]
    told = f"Dead letters in each {length(window.width_ms)}; {total:,} in all."
    plot = Plot("dead", "Dead letters over time", told, _labels(window), [("dead letters", counts)])
    pairs = [(label, f"{count:,}") for label, count in zip(_labels(window), counts, strict=True) if count]
    rows = [
        (
            f"{each.count:,}", Text(each.reason), Text(each.error), Text(each.text), brief(each.first_ms),
            brief(each.last_ms), each.example,
        )
        for each in figures.fingerprints
    ]  # fmt: skip
    caption = f"By what they died of: {len(rows):,} of {figures.fingerprint_count:,} groups, the most frequent first"
    head = (
        "count",
        "reason",
        "error",
        "text (<n>, <id>, <text> stand for values)",
        "first, UTC",
        "last, UTC",
        "newest",
    )
    return section(
        "Dead letters", bars(plot), note(told), folded("Table", table("Over time", ("from", "dead letters"), pairs)),
        table(caption, head, rows),
    )  # fmt: skip


def kinds(figures: Figures) -> str:
    """The slowest kinds, and the most frequent ones."""
    parts = []
    if figures.results is not None:
        slowest = [
            (_kind(group), f"{group.count:,}", *_lengths(group.second), *_lengths(group.first)[2:3])
            for group in figures.results.of("kind")[:_MOST_LINES]
        ]
        head = ("kind", "results", *(f"run {name}" for name in SHARE_NAMES), "end to end p95")
        parts.append(table("The slowest, by p95 of their runs", head, slowest) if slowest else note("No results."))
    else:
        parts.append(note("How long kinds take is not known without results."))
    frequent = [(_kind(g), f"{g.count:,}", size(g.bytes)) for g in figures.messages.of("kind")[:_MOST_LINES]]
    if frequent:
        parts.append(table("The most frequent", ("kind", "messages", "bytes"), frequent))
    return section("Kinds", *parts)


def payloads(figures: Figures) -> str:
    """How big messages are."""
    if not figures.payloads:
        return section("Payloads", note(_NOTHING))
    sizes = [size(value) for value in figures.messages.whole.first.values]
    rows = [
        (size(p.bytes), Text(p.id), Text(p.stream), Text(p.kind or ""), Text(p.key or "")) for p in figures.payloads
    ]
    return section(
        "Payloads",
        table("Sizes of all", ("", *SHARE_NAMES), [("size", *sizes)]),
        table("The biggest", ("size", "id", "stream", "kind", "key"), rows),
    )


def archive(figures: Figures) -> str:
    """What is archived."""
    found = figures.coverage
    if found is None:
        return section("Archive", note("No archive was named (--archive)."))
    if not found.is_known:
        return section("Archive", note(f"The archive {found.root} does not have this stream.", is_warning=True))
    told = f"Entries of each day in {found.root}, of all time."
    plot = Plot(
        "archive", "Archived entries by day", told, [d.date for d in found.days], [("", [d.rows for d in found.days])]
    )
    lost = "an unknown number" if found.lost is None else f"{found.lost:,}"
    waiting = "an unknown number" if found.waiting is None else f"{found.waiting:,}"
    rows = [(d.date, f"{d.rows:,}", f"{d.files:,}", size(d.bytes)) for d in found.days]
    return section(
        "Archive",
        bars(plot),
        note(f"{told} Archived up to {found.upto or 'an id of each stream'}. Not archived yet: {waiting}."),
        note(f"Lost before they were archived: {lost}.", is_warning=found.lost != 0),
        folded("Table", table("By day", ("day", "entries", "files", "bytes"), rows)),
    )


def _labels(window: Window) -> list[str]:
    form = "%Y-%m-%d" if window.width_ms >= 86_400_000 else "%m-%d %H:%M" if window.width_ms >= 60_000 else "%H:%M:%S"
    return [datetime.fromtimestamp(start / 1000, UTC).strftime(form) for start in window.starts]


def _lengths(spread: Spread) -> list[str]:
    return [length(value) for value in spread.values] or [length(None)] * len(SHARE_NAMES)


def _kind(group: Group) -> str:
    return "(none)" if group.name is None else str(group.name)
