"""`penstock health` and `penstock doctor`: whether all is well, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from penstock.cli.command import UNHEALTHY, Server
from penstock.cli.options import AsJson, Pattern, duration
from penstock.cli.shown import Columns, print_rows
from penstock.cli.stream import lag_text, total_lag_text
from penstock.ops.model import GroupKind, Overview, Severity
from penstock.shown import shown, to_json

_FINDINGS: Columns = {
    "severity": lambda each: each.severity.value,
    "check": "check",
    "where": "where",
    "what": "what",
    "fix": lambda each: f"{each.fix} ({each.page})" if each.link else each.fix,
}


def health(
    server: Server,
    stream: Pattern = "*",
    max_lag: Annotated[int, typer.Option(min=0, help="Entries that a group may have left unread.")] = 10_000,
    max_age: Annotated[float | None, duration("How old the oldest unread entry may be.")] = None,
    max_idle: Annotated[float, duration("How long a holder of messages may be silent.", default="1m")] = 60.0,
    max_dead_letters: Annotated[int | None, typer.Option(min=0, help="Dead letters that there may be.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print whether consumers keep up; the exit code is 3 if they do not."""
    with server.inspector() as inspector:
        found = inspector.overview(stream, count_lags=True)
    issues = list(_issues(found, max_lag, max_age, max_idle, max_dead_letters))
    if as_json:
        print(to_json({"healthy": not issues, "issues": issues, **_numbers(found)}))
    else:
        for issue in issues:
            print(shown(issue))
        print(f"{'unhealthy' if issues else 'healthy'}: {_summary(found)}")
    if issues:
        raise typer.Exit(UNHEALTHY)


def _issues(
    found: Overview, max_lag: int, max_age_s: float | None, max_idle_s: float, max_dead_letters: int | None
) -> Iterator[str]:
    for stream in found.streams:
        if stream.groups_count > len(stream.groups):
            yield f"{stream.name}: {len(stream.groups)} of {stream.groups_count} groups are looked at"
        for each in stream.groups:
            where = f"{stream.name}/{each.name}"
            if each.lag.count > max_lag:
                yield f"{where}: lag {lag_text(each.lag)} is above {max_lag:,}"
            if max_age_s is not None and each.lag.age_s > max_age_s:
                yield f"{where}: the oldest unread entry is {each.lag.age_s:,.0f} s old"
            idle_s = each.oldest_pending_idle_ms / 1000
            if each.kind is GroupKind.CONSUMERS and idle_s > max_idle_s:
                yield f"{where}: the holder of {each.oldest_pending_id} has been silent for {idle_s:,.0f} s"
    if max_dead_letters is not None and found.totals.dead_letters > max_dead_letters:
        yield f"{found.totals.dead_letters:,} dead letters are more than {max_dead_letters:,}"
    for server in found.servers:
        if not server.last_save_ok:
            yield f"{server.address}: the last save to disk failed"


def _numbers(found: Overview) -> dict[str, Any]:
    totals = found.totals
    return {
        "streams": totals.streams,
        "lag": totals.lag,
        "is_lag_exact": totals.is_lag_exact,
        "oldest_unread_s": totals.oldest_unread_s,
        "pending": totals.pending,
        "dead_letters": totals.dead_letters,
    }


def _summary(found: Overview) -> str:
    totals = found.totals
    return (
        f"{totals.streams:,} streams, lag {total_lag_text(totals)}, {totals.pending:,} pending, "
        f"{totals.dead_letters:,} dead letters"
    )


def doctor(
    server: Server,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as unhealthy, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Examine the servers and what is on them: each finding has its fix; the exit code is 3 if one is an error."""
    with server.inspector() as inspector:
        findings = inspector.doctor()
    print_rows(findings, _FINDINGS, as_json=as_json, none="nothing was found that needs a fix")
    grave = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    if any(finding.severity in grave for finding in findings):
        raise typer.Exit(UNHEALTHY)
