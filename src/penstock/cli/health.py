"""`penstock health` and `penstock doctor`: whether all is well, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from penstock.cli.acl import RolePlace
from penstock.cli.command import UNHEALTHY, Server, must_match
from penstock.cli.options import AsJson, Pattern, duration
from penstock.cli.shown import Columns, print_rows, say, span
from penstock.cli.stream import lag_text, total_lag_text
from penstock.errors import ConfigurationError
from penstock.ops.model import GroupKind, Overview, Severity
from penstock.ops.model.groups import dead_after_ms
from penstock.ops.rights import Place, RoleName
from penstock.shown import shown, to_json

_FINDINGS: Columns = {
    "severity": lambda each: each.severity.value,
    "check": "check",
    "where": "where",
    "what": "what",
    "fix": lambda each: f"{each.fix} (see {each.page})" if each.link else each.fix,
}


def health(
    server: Server,
    stream: Pattern = "*",
    max_lag: Annotated[int, typer.Option(min=0, help="Maximum number of unread entries of a group.")] = 10_000,
    max_age: Annotated[float | None, duration("Maximum age of the oldest unread entry.")] = None,
    max_idle: Annotated[
        float | None,
        duration("Maximum time without work on a pending message.", default="1m, and 6m in message queues"),
    ] = None,
    max_dead_letters: Annotated[int | None, typer.Option(min=0, help="Maximum number of dead letters.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print whether consumers keep up; the exit code is 3 if they do not, or if the stream does not exist."""
    with server.inspector() as inspector:
        must_match(inspector, stream)
        found = inspector.overview(stream, count_lags=True)
    issues = list(_issues(found, max_lag, max_age, max_idle, max_dead_letters))
    if as_json:
        print(to_json({"is_healthy": not issues, "issues": issues, **_numbers(found)}))
    else:
        for issue in issues:
            print(shown(issue))
        print(f"{'unhealthy' if issues else 'healthy'}: {_summary(found)}")
    for each in found.streams:
        if (more := each.groups_count - len(each.groups)) > 0:
            say(f"{more:,} of {each.groups_count:,} groups of {each.name} were not examined")
    if issues:
        raise typer.Exit(UNHEALTHY)


def _issues(
    found: Overview, max_lag: int, max_age_s: float | None, max_idle_s: float | None, max_dead_letters: int | None
) -> Iterator[str]:
    for stream in found.streams:
        for each in stream.groups:
            where = f"{stream.name}/{each.name}"
            if each.lag.count > max_lag:
                yield f"{where}: lag {lag_text(each.lag)} exceeds --max-lag {max_lag:,}"
            if max_age_s is not None and each.lag.age_s > max_age_s:
                yield f"{where}: the oldest unread entry is {span(each.lag.age_s)} old"
            idle_s = each.oldest_pending_idle_ms / 1000
            longest_s = dead_after_ms(each.name) / 1000 if max_idle_s is None else max_idle_s
            if each.kind is GroupKind.CONSUMERS and idle_s > longest_s:
                yield f"{where}: no consumer has worked on {each.oldest_pending_id} for {span(idle_s)}"
    if max_dead_letters is not None and found.totals.dead_letters > max_dead_letters:
        yield f"{found.totals.dead_letters:,} dead letters exceed --max-dead-letters {max_dead_letters:,}"
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
        "groups_not_examined": sum(each.groups_count - len(each.groups) for each in found.streams),
    }


def _summary(found: Overview) -> str:
    totals = found.totals
    return (
        f"{totals.streams:,} streams, lag {total_lag_text(totals)}"
        f"{f' (the oldest {span(totals.oldest_unread_s)})' if totals.lag else ''}, {totals.pending:,} pending, "
        f"{totals.dead_letters:,} dead letters"
    )


def doctor(
    server: Server,
    names: RolePlace,
    role: Annotated[
        list[RoleName] | None,
        typer.Option(help="Also check that the user has the rights of this role, and not far more. May be repeated."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="With --role: the user to check.", show_default="the one that connects")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as unhealthy, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check servers, streams and groups; print each problem with a fix, and exit with 3 if one is an error.

    For --role, name the keys that the user works with: the options are those of `penstock acl`, and may be repeated.
    """
    if not role and (user is not None or names.place != Place()):
        raise ConfigurationError("--stream, --queue, --service, --dead-letters, --prefix and --user need --role")
    with server.inspector() as inspector:
        findings = inspector.doctor(role or (), names.place, user)
    print_rows(findings, _FINDINGS, as_json=as_json, none="no problems found")
    failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    if any(finding.severity in failing for finding in findings):
        raise typer.Exit(UNHEALTHY)
