"""The two tables at the end of a run, as plain text that is also Markdown."""

from __future__ import annotations

import statistics

from bench.figures import Samples
from bench.targets import Verdict

# Heading, test, figure, how to print it.
_COLUMNS = (
    ("publish 1 by 1 /s", "publish-one", "rate", ",.0f"),
    ("50 callers /s", "publish-50", "rate", ",.0f"),
    ("bulk /s", "publish-bulk", "rate", ",.0f"),
    ("drain batch /s", "drain-batch", "rate", ",.0f"),
    ("drain each /s", "drain-each", "rate", ",.0f"),
    ("p50 ms", "latency", "p50_ms", ".2f"),
    ("p99 ms", "latency", "p99_ms", ".2f"),
    ("cmds sent", "latency", "sent", ".2f"),
    ("cmds executed", "latency", "executed", ".2f"),
    ("10k pending /s", "pel", "rate_small", ",.0f"),
    ("200k pending /s", "pel", "rate_large", ",.0f"),
    ("cost ratio", "pel", "cost_ratio", ".2f"),
    ("queue publish /s", "queue-publish", "rate", ",.0f"),
    ("queue consume /s", "queue-consume", "rate", ",.0f"),
    ("queue p50 ms", "queue-latency", "p50_ms", ".2f"),
    ("queue p99 ms", "queue-latency", "p99_ms", ".2f"),
    ("queue cmds sent", "queue-latency", "sent", ".2f"),
    ("bytes a byte in flight", "queue-memory", "memory_ratio", ".2f"),
)


def figures_table(samples: Samples, peers: list[str]) -> str:
    """Returns the medians of every peer, without the columns that no peer has."""
    cells = {
        (peer, heading): samples.median(test, peer, figure) for peer in peers for heading, test, figure, _ in _COLUMNS
    }
    columns = [c for c in _COLUMNS if any(cells[peer, c[0]] is not None for peer in peers)]
    rows = []
    for peer in peers:
        values = [(cells[peer, heading], form) for heading, _, _, form in columns]
        rows.append([peer, *("-" if value is None else format(value, form) for value, form in values)])
    return table(["peer", *(column[0] for column in columns)], rows)


def against_table(samples: Samples, peers: list[str], commit: str) -> str:
    """Returns for Penstock's peers what they do now over what they did at the commit; times are turned around."""
    rows = []
    for peer in peers:
        for heading, test, figure, _ in _COLUMNS:
            now, then = (samples.by_round(test, name, figure, with_noisy=True) for name in (peer, f"{peer}@{commit}"))
            pairs = [(now[number], then[number]) for number in now.keys() & then.keys()]
            ratios = sorted(a / b if heading.endswith("/s") else b / a for a, b in pairs if a and b)
            if ratios:
                middle = statistics.median(ratios)
                rows.append([peer, heading, f"{middle:.3f}", f"{ratios[0]:.2f} - {ratios[-1]:.2f}", str(len(ratios))])
    return table(["peer", "figure", "ratio", "lowest - highest", "rounds"], rows)


def costs_table(samples: Samples, peers: list[str]) -> str:
    """Returns what a message costs in processor time, which is steadier than a rate under other load."""
    columns = {heading.removesuffix(" /s"): test for heading, test, figure, _ in _COLUMNS if figure == "rate"}
    measured = {sample.test for sample in samples.all}
    columns = {heading: test for heading, test in columns.items() if test in measured}
    rows = [[peer, *(_cost(samples, test, peer) for test in columns.values())] for peer in peers]
    return table(["peer", *columns], rows)


def _cost(samples: Samples, test: str, peer: str) -> str:
    own, server = samples.median(test, peer, "peer_cpu_us"), samples.median(test, peer, "server_cpu_us")
    return "-" if own is None or server is None else f"{own:.1f} + {server:.1f}"


def targets_table(verdicts: list[Verdict]) -> str:
    """Returns how the run stands to every target."""
    return table(
        ["target", "of", "against", "bound", "value", "lowest - highest", "rounds", "met"],
        [_row(verdict) for verdict in verdicts],
    )


def _row(verdict: Verdict) -> list[str]:
    target = verdict.target
    against = verdict.reference or (target.references[0] if target.references else "-")
    bound = f"{target.direction} {target.bound:g}"
    if verdict.value is None:
        return [target.name, target.subject, against, bound, "-", "-", "-", "not measured"]
    spread = f"{verdict.low:.2f} - {verdict.high:.2f}"
    return [
        target.name,
        target.subject,
        against,
        bound,
        f"{verdict.value:.2f}",
        spread,
        str(verdict.rounds),
        ("yes" if verdict.is_met else "NO") + (" (disturbed)" if verdict.is_noisy else ""),
    ]


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Returns an aligned table; numbers go to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    lines = [headings, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(_aligned(cell, width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() or cell == "-" else cell.ljust(width)
