"""Users with the rights that `penstock acl` prints, for runs with --acl: clients of a shared server log in as one.

A URL of the server logs in. Whoever connects to its unix socket without one is the administrator.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import cache

import pytest

from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.testing import FaultProxy

NAME, PASSWORD = "least", "secret"
# Tried where a server allows it, and done without where it does not (docs/how-to/rights.md). Redis 6.2 tells of a
# subcommand by the command alone.
_OPTIONAL = {"client", "client|kill", "client|setinfo", "config", "config|get", "config|set"}


@dataclass(frozen=True)
class User:
    """Who the clients of a test log in as: the options of `penstock acl`."""

    role: str
    stream: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    service: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The words of the command line."""
        named = {name.replace("_", "-"): getattr(self, name) for name in self.__dataclass_fields__ if name != "role"}
        return (
            "--role",
            self.role,
            *(word for name, keys in named.items() for key in keys for word in (f"--{name}", key)),
        )


# By the folder of the test; its generated sync twin lies in a folder of the same name, or in `sync` itself.
_USERS = {
    "streams": User("worker", stream=("orders",), dead_letters=("graveyard",)),
    "queue": User("worker", stream=("orders",)),
    "tasks": User("tasks", queue=("jobs", "penstock")),
    "balancer": User("balancer", service=("svc", "orders")),  # with data streams of any name
    "spark": User("spark", stream=("orders", "orders:*", "s", "s[0-9]*")),
}
_USERS["sync"] = _USERS["streams"]


def user_of(item: pytest.Item) -> User | None:
    """Return who the clients of a test log in as; None = there is no role for what it does.

    A test marked `acl` names a role or keys of its own.
    """
    if item.get_closest_marker("admin"):
        return None
    folders = [part for part in reversed(item.path.relative_to(item.config.rootpath / "tests").parts) if part in _USERS]
    user = _USERS[folders[0]] if folders else None
    for mark in reversed([*item.iter_markers("acl")]):  # the closest one comes last, and wins
        user = replace(user, **mark.kwargs) if user else User(**mark.kwargs)
    return user


class SharedServer(EmbeddedServer):
    """A server whose URLs log in once `log_in()` was called."""

    _login = ""

    @property
    def unix_url(self) -> str:
        """The URL of the unix socket."""
        return self.logged_in(super().unix_url)

    @property
    def url(self) -> str:
        """The URL of the TCP port."""
        return self.logged_in(super().url)

    def logged_in(self, url: str) -> str:
        """Return a URL of this server with name and password."""
        return url.replace("://", f"://{self._login}") if self._login not in url else url

    def log_in(self, user: User) -> None:
        """Make the user, and let URLs log in as it from now on."""
        self.log_out()
        self._make(NAME, user)
        self._login = f"{NAME}:{PASSWORD}@"
        if user.role == "balancer":
            ask(self.unix_socket, "CONFIG", "SET", "notify-keyspace-events", "KEx")  # the administrator's part
        ask(self.unix_socket, "ACL", "LOG", "RESET")

    def log_out(self) -> None:
        """Let URLs be those of the administrator."""
        self._login = ""
        ask(self.unix_socket, "ACL", "DELUSER", NAME)

    def _make(self, name: str, user: User) -> None:
        words = shlex.split(_printed(super().unix_url, user))
        reply = ask(self.unix_socket, *words[:2], name, *words[3:], f">{PASSWORD}")
        assert reply == b"OK", reply

    @property
    def refused(self) -> list[str]:
        """What was refused that nobody can do without: commands, keys and channels."""
        return [name for name in refused(self) if name not in _OPTIONAL]


def refused(server: EmbeddedServer) -> list[str]:
    """Return what a server has refused: commands, keys and channels, but for what redis-py says of itself."""
    log: list[list[bytes]] = ask(server.unix_socket, "ACL", "LOG")  # type: ignore[assignment]
    names = [row[row.index(b"object") + 1].decode(errors="replace") for row in log]
    return [
        name for name in names if name not in {"client", "client|setinfo"}
    ]  # CLIENT SETINFO, as 6.2 tells of it too


class UserProxy(FaultProxy):
    """A proxy whose URL logs in as that of its server does."""

    def __init__(self, server: SharedServer) -> None:
        super().__init__(server.unix_socket)
        self._server = server

    @property
    def url(self) -> str:
        """The URL under which clients reach the server through the proxy."""
        return self._server.logged_in(super().url)


@cache
def _printed(url: str, user: User) -> str:
    from tests.helpers.commands import run

    shown = run("acl", *user.options, "--url", url)
    assert shown.exit_code == 0, shown.output
    return shown.stdout
