"""Runs the dashboard by itself, as `penstock dashboard` does."""

from __future__ import annotations

import socket
from collections.abc import Callable

from starlette.applications import Starlette

from penstock.errors import ConfigurationError
from penstock.lazy_imports import require

require("uvicorn", "dashboard", "the dashboard")
import uvicorn  # noqa: E402  the check above comes first

_GRACE_S = 5  # for running requests at shutdown


class DashboardServer(uvicorn.Server):
    """A server of one dashboard; `run()` serves until SIGTERM, Ctrl-C or `should_exit`.

    `announce` is called with the address as soon as it can be opened.
    """

    def __init__(self, app: Starlette, host: str, port: int, announce: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,  # addresses hold what users look for, and once the token
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._app, self._host, self._port, self._announce = app, host, port, announce

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve."""
        with _listening(self._host, self._port) as listening:
            super().run([*(sockets or ()), listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        assert sockets is not None
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._announce(f"http://{host}:{sockets[-1].getsockname()[1]}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, and let the feeds end first: browsers do not go away by themselves."""
        self._app.state.live.end_feeds()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port}: {error}; choose another --host or --port"
        ) from error
