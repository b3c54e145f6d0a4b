"""`penstock dashboard`: streams, groups, dead letters, tasks and workers in a browser."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Annotated

import typer

from penstock.cli.command import Server
from penstock.cli.options import LOOPBACK, Host
from penstock.cli.shown import say
from penstock.errors import ConfigurationError


def dashboard(
    server: Server,
    host: Host = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 picks a free one.")] = 9_809,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_DASHBOARD_TOKEN",
            help=(
                "The token to log in with. Required, and generated if not given, unless --host is a loopback address."
            ),
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A host name under which the dashboard is reached. May be repeated.")
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let users redrive, claim, retry, trim and cancel.")
    ] = False,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C."""
    from penstock.dashboard import create_app
    from penstock.dashboard.server import DashboardServer

    is_new = token is None and not _is_loopback(host)
    if is_new:
        token = secrets.token_urlsafe(24)
    app = create_app(
        server.url,
        token=token,
        allowed_hosts=[*(allowed_host or ()), *([] if _is_any(host) else [host])],
        allow_actions=allow_actions,
        protection=server.protection,
    )
    DashboardServer(app, host, port, lambda address: _announce(address, token, is_new, allow_actions)).run()


def _announce(address: str, token: str | None, is_new: bool, allow_actions: bool) -> None:
    # Who chose the token knows it; printed, it would end up in the logs of services and containers.
    login = f"/login?token={token}" if is_new else "/login" if token else "/"
    say(f"dashboard on {address}{login} ({'actions allowed' if allow_actions else 'read-only'})", is_needed=is_new)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        if not host:
            raise ConfigurationError(
                "--host must not be empty: use 0.0.0.0 to accept connections from other machines"
            ) from None
        return False
