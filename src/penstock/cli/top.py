"""`penstock top`: all streams, live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from penstock.cli.command import Server
from penstock.cli.options import AsJson, Every, Pattern
from penstock.cli.shown import cell, print_table
from penstock.cli.stream import lag_text, total_lag_text
from penstock.ops.model import Sample, StreamInfo
from penstock.shown import plain, to_json
from penstock.sync.ops import Sampler

_TITLES = ("stream", "kind", "entries", "in/s", "out/s", "lag", "pending", "dead letters", "drained in")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def top(
    server: Server,
    stream: Pattern = "*",
    every: Every = 2.0,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", min=1, help="Exit after this many.", show_default="never")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show streams, rates, lag, pending messages and dead letters live, the busiest first, until Ctrl-C.

    Where the output is not a terminal it prints one table, of two samples, and exits.
    """
    console = Console()
    with server.inspector() as inspector:
        inspector.servers.all()  # a server that is away ends the command, and not the first sample alone
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


def _follow(sampler: Sampler, samples: int | None, tell: Callable[[Sample], None]) -> None:
    with sampler:
        seen = 0
        while samples is None or seen < samples:
            sampler.wait()
            seen += 1
            tell(sampler.samples[-1])


def _row(sampler: Sampler, sample: Sample) -> dict[str, object]:
    streams = [each.name for each in sampler.overview.streams] if sampler.overview is not None else []
    points = {name: sampler.points(name)[-1] for name in streams if sampler.points(name)}
    return {**plain(sample), "streams": points, "groups": sampler.lags()}


def _view(sampler: Sampler, sample: Sample, height: int) -> Group:
    totals = sample.totals
    now = datetime.fromtimestamp(sample.at_ms / 1000, UTC)
    head = (
        f"penstock top  {now:%H:%M:%S}  {totals.streams:,} streams  {sample.in_per_s:,.0f} in/s  "
        f"{sample.out_per_s:,.0f} out/s  lag {total_lag_text(totals)}  pending {totals.pending:,}  "
        f"dead letters {totals.dead_letters:,}  memory {sample.used_memory / 1e6:,.1f} MB  {sample.clients:,} clients"
    )
    return Group(cell(sample.error or head), "", _table(sampler, max(1, height - 5)))


def _table(sampler: Sampler, most: int | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(_TITLES):
        table.add_column(title, no_wrap=True, justify="left" if number < 2 else "right")
    streams = sampler.overview.streams if sampler.overview is not None else ()
    drains = {(each.stream, each.group): each.drain_s for each in sampler.lags()}
    for stream in sorted(streams, key=lambda each: _busy(sampler, each))[:most]:
        point = sampler.points(stream.name)[-1]
        drain = [drains.get((stream.name, each.name)) for each in stream.groups]
        slowest = None if None in drain else max(filter(None, drain), default=0.0)
        row = (
            stream.name, stream.kind.value, f"{stream.length:,}", f"{point.in_per_s:,.1f}", f"{point.out_per_s:,.1f}",
            lag_text(stream.lag) or "-", f"{stream.pending:,}", f"{stream.dead_letters:,}",
            "-" if slowest is None or not stream.groups else span_text(slowest),
        )  # fmt: skip
        table.add_row(*map(cell, row))
    return table


def _busy(sampler: Sampler, stream: StreamInfo) -> tuple[float, int, str]:
    point = sampler.points(stream.name)[-1]
    return -(point.in_per_s + point.out_per_s), -point.lag, stream.name


def span_text(seconds: float) -> str:
    """Return a duration in its two greatest units."""
    parts, left = list[str](), round(seconds)
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2]) or "0s"
