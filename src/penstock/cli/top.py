"""`penstock top`: all streams, live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.command import Server, must_match
from penstock.cli.options import AsJson, Every, Pattern
from penstock.cli.shown import cell, print_table
from penstock.cli.stream import lag_text, total_lag_text
from penstock.errors import PenstockError
from penstock.ops.condition import StreamCondition
from penstock.ops.model import Sample, StreamInfo, StreamPoint
from penstock.shown import plain, to_json
from penstock.sync.ops import Sampler
from penstock.units import duration

_TITLES = ("stream", "kind", "state", "entries", "in/s", "out/s", "lag", "pending", "dead letters", "drained in")
_STYLES = {"bad": "bold red", "warn": "yellow", "good": "green"}


def top(
    server: Server,
    stream: Pattern = "*",
    every: Every = 2.0,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Exit after this many samples.", show_default="never")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show streams, rates, lag, pending messages and dead letters live, until Ctrl-C.

    Stalled streams come first, then the busiest. If the output is not a terminal, print one table from two samples and
    exit.
    """
    console = Console()
    with server.inspector() as inspector:
        inspector.servers.all()  # a server that is away ends the command, and not the first sample alone
        must_match(inspector, stream)
        sampler = Sampler(inspector, every_s=every, match=stream)
        if as_json:
            _follow(sampler, samples, lambda sample: print(to_json(_row(sampler, sample)), flush=True))
        elif console.is_terminal:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                _follow(
                    sampler, samples, lambda sample: live.update(_view(sampler, sample, console.height), refresh=True)
                )
        else:
            _follow(sampler, samples or 2, lambda _: None)
            print_table(_table(sampler, None))


def _follow(sampler: Sampler, samples: int | None, show: Callable[[Sample], None]) -> None:
    with sampler:
        seen = failed = 0
        while samples is None or seen < samples:
            sampler.wait()
            seen += 1
            sample = sampler.samples[-1]
            failed += bool(sample.error)
            show(sample)
    if failed == seen:
        raise PenstockError(sampler.samples[-1].error)


def _row(sampler: Sampler, sample: Sample) -> dict[str, object]:
    found = sampler.overview.streams if sampler.overview is not None else ()
    streams = {stream.name: points[-1] for stream in found if (points := sampler.points(stream.name))}
    return {**plain(sample), "streams": streams, "groups": sampler.lags()}


def _view(sampler: Sampler, sample: Sample, height: int) -> Group:
    totals = sample.totals
    now = datetime.fromtimestamp(sample.at_ms / 1000, UTC)
    head = (
        f"penstock top  {now:%H:%M:%SZ}  {totals.streams:,} streams  {sample.in_per_s:,.0f} in/s  "
        f"{sample.out_per_s:,.0f} out/s  lag {total_lag_text(totals)}  pending {totals.pending:,}  "
        f"dead letters {totals.dead_letters:,}  memory {sample.used_memory / 1e6:,.1f} MB  {sample.clients:,} clients"
    )
    return Group(cell(sample.error or head), "", _table(sampler, max(1, height - 5)))


def _table(sampler: Sampler, most: int | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(_TITLES):
        table.add_column(title, no_wrap=True, justify="left" if number < 3 else "right")
    drains = {(each.stream, each.group): each.drain_s for each in sampler.lags()}
    # The next sample may be under way, and a stream be gone in the middle of this.
    lines = [
        (condition, stream, points[-1])
        for stream, condition in sampler.conditions()
        if (points := sampler.points(stream.name))
    ]
    for condition, stream, point in sorted(lines, key=_urgent)[:most]:
        drain = [drains.get((stream.name, each.name)) for each in stream.groups]
        slowest = None if None in drain else max(filter(None, drain), default=0.0)
        name, kind, *numbers = (
            stream.name, stream.kind.value, f"{stream.length:,}", _rate(point.in_per_s), _rate(point.out_per_s),
            lag_text(stream.lag) or "-", f"{stream.pending:,}", f"{stream.dead_letters:,}",
            "-" if slowest is None or not stream.groups else duration(slowest),
        )  # fmt: skip
        state = Text(condition.text, _STYLES.get(condition.tone, ""))
        table.add_row(cell(name), cell(kind), state, *map(cell, numbers))
    return table


def _urgent(line: tuple[StreamCondition, StreamInfo, StreamPoint]) -> tuple[bool, float, int, str]:
    condition, stream, point = line
    return not condition.is_bad, -((point.in_per_s or 0.0) + (point.out_per_s or 0.0)), -point.lag, stream.name


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
