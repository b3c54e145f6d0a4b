"""The connection settings of a client: one frozen value, however the client is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from penstock.errors import ConfigurationError
from penstock.number_checks import check_number, check_seconds
from penstock.redis.address import Address

Host: TypeAlias = tuple[str, int]
ConnectionKind: TypeAlias = Literal["single", "unix", "cluster", "sentinel"]


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the servers are, and how to connect to them."""

    kind: ConnectionKind = "single"
    hosts: tuple[Host, ...] = (("localhost", 6379),)
    path: str | None = None
    service_name: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    credential_provider: Any = field(default=None, repr=False)  # of redis-py, asked at each connect
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

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_seconds("socket_timeout", self.socket_timeout_s)
        check_seconds("socket_connect_timeout", self.connect_timeout_s)
        if not (_is(self.pool_timeout_s, int, float) and self.pool_timeout_s >= 0):
            raise ConfigurationError(f"pool_timeout={self.pool_timeout_s!r} must be a number of seconds, 0 or more")
        check_number("max_connections", self.max_connections)
        self._check_place()
        if self.tls_options and not self.tls:
            names = ", ".join(sorted(self.tls_options))
            raise ConfigurationError(f"{names} would have no effect without TLS: set ssl=True, or use rediss://")

    def _check_place(self) -> None:
        if not (_is(self.db, int) and self.db >= 0):
            raise ConfigurationError(f"db={self.db!r} must be the number of a database, such as 0")
        if self.kind == "cluster" and self.db:
            raise ConfigurationError(f"db={self.db}: a Redis Cluster has only database 0; remove db")
        for host, port in self.hosts:
            if not (_is(host, str) and host.strip()):
                raise ConfigurationError(f"host={host!r} must be a host name or an address, such as 'localhost'")
            if not (_is(port, int) and 1 <= port <= 65_535):
                raise ConfigurationError(f"port={port!r} must be a number from 1 to 65535, such as 6379")

    @property
    def where(self) -> str:
        """The servers as text for messages, without secrets."""
        if self.path:
            return f"unix:{self.path}"
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def within(self, longest_s: float) -> Self:
        """Return settings whose timeouts are no longer than that."""
        socket_s, connect_s = min(self.socket_timeout_s, longest_s), min(self.connect_timeout_s, longest_s)
        return replace(self, socket_timeout_s=socket_s, connect_timeout_s=connect_s)

    def where_is(self, host: Host) -> str:
        """Return one of the servers as text for messages."""
        return self.where if self.kind in ("single", "unix") else f"{host[0]}:{host[1]}"

    def driver_options(self) -> dict[str, Any]:
        """Return the keyword arguments that every redis-py connection gets."""
        login = {"username": self.username, "password": self.password}
        options: dict[str, Any] = {
            **({"credential_provider": self.credential_provider} if self.credential_provider else login),
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


_SPELLED = {
    "socket_timeout": "socket_timeout_s",
    "socket_connect_timeout": "connect_timeout_s",
    "socket_keepalive": "keepalive",
    "socket_keepalive_options": "keepalive_options",
    "pool_timeout": "pool_timeout_s",
    "ssl": "tls",
}


def settings_of(address: Address, given: Mapping[str, Any]) -> ConnectionSettings:
    """Return the settings for an address, with options as users of StreamClient spell them."""
    tls_options = {name: value for name, value in given.items() if name.startswith("ssl_")}
    known = {**vars(address), "tls_options": checked_tls(tls_options)}
    del known["options"]
    for name in given.keys() - tls_options.keys():
        target = _SPELLED.get(name, name)
        if target not in ConnectionSettings.__dataclass_fields__:
            raise ConfigurationError(f"unknown option {name!r}; see StreamClient() for the options")
        known[target] = given[name]
    return ConnectionSettings(**known)


def checked_tls(options: dict[str, Any]) -> dict[str, Any]:
    """Return the TLS options as redis-py takes them, with verification on unless it is switched off by name."""
    known = {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_check_hostname",
        "ssl_cert_reqs",
        "ssl_min_version",
        "ssl_ciphers",
    }
    for name in options:
        if name not in known:
            names = ", ".join(sorted(known))
            raise ConfigurationError(
                f"unknown option {name!r}; see StreamClient() for the options. TLS options: {names}"
            )
    given = {name: value for name, value in options.items() if value is not None}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **given} if given else {}


def checked_hosts(what: str, nodes: Sequence[Mapping[str, Any] | tuple[str, int]]) -> tuple[Host, ...]:
    """Return hosts and ports, given as mappings or pairs."""
    hosts = []
    for node in nodes:
        try:
            host, port = (node["host"], node["port"]) if isinstance(node, Mapping) else node
            hosts.append((str(host), int(port)))
        except (KeyError, TypeError, ValueError):
            # Without the value itself, which may contain a password.
            shown = f"a mapping with {sorted(map(str, node))}" if isinstance(node, Mapping) else type(node).__name__
            raise ConfigurationError(f"{what} must be mappings with 'host' and 'port', not {shown}") from None
    if not hosts:
        raise ConfigurationError(f"{what} must name at least one server")
    return tuple(hosts)


def _is(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
