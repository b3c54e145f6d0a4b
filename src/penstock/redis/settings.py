"""How to reach Redis: one frozen value behind every way to make a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Host: TypeAlias = tuple[str, int]
Kind: TypeAlias = Literal["single", "unix", "cluster", "sentinel"]


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the servers are, and how to speak to them."""

    kind: Kind = "single"
    hosts: tuple[Host, ...] = (("localhost", 6379),)
    path: str | None = None
    service_name: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    client_name: str | None = None
    tls: bool = False
    tls_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    socket_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    keepalive: bool = True
    keepalive_options: Mapping[int, int] | None = None
    max_connections: int = 1000
    pool_timeout_s: float = 5.0

    @property
    def where(self) -> str:
        """The servers as text for messages, without secrets."""
        if self.path:
            return f"unix:{self.path}"
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def sentinel_options(self) -> dict[str, Any]:
        """Return the keyword arguments for connections to the Sentinels, which have passwords of their own."""
        return {
            "username": self.sentinel_username,
            "password": self.sentinel_password,
            "socket_timeout": self.connect_timeout_s,
            "socket_connect_timeout": self.connect_timeout_s,
            "ssl": self.tls,
            **self.tls_options,
        }

    def driver_options(self) -> dict[str, Any]:
        """Return the keyword arguments that every redis-py connection gets."""
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "client_name": self.client_name,
            "socket_timeout": self.socket_timeout_s,
            "socket_connect_timeout": self.connect_timeout_s,
            "protocol": 2,
        }
        if self.kind != "unix":
            options["socket_keepalive"] = self.keepalive
            if self.keepalive_options is not None:
                options["socket_keepalive_options"] = self.keepalive_options
        return options
