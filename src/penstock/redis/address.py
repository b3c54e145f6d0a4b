"""URLs of Redis servers: what they say, and what is wrong with them, without ever showing a password."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import unquote

from penstock.errors import ConfigurationError

Kind = Literal["single", "unix", "cluster", "sentinel", "embedded"]
Option = str | float | bool

SCHEMES: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("unix", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "embedded": ("embedded", False),
}
REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_EXAMPLES: Final[Mapping[Kind, str]] = {
    "single": "redis://user:password@host:6379/0",
    "unix": "unix:///run/redis.sock?db=0",
    "cluster": "redis+cluster://node1:7000,node2:7001",
    "sentinel": "redis+sentinel://host1:26379,host2:26379/service_name/0",
    "embedded": "embedded:// or embedded:///var/lib/my-data",
}


@dataclass(frozen=True)
class Address:
    """Where Redis is and how to log in. The repr omits the login: even its user name may be a password."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    service_name: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)


def parse_url(url: str) -> Address:
    """Return what a URL says.

    redis://[user:password@]host[:port][/db], rediss:// for TLS; unix:///path/to/socket[?db=1];
    redis+cluster://node1:7000,node2:7001; redis+sentinel://host1,host2/service_name[/db];
    embedded://[/data/directory]. User names and passwords are percent-decoded.

    Raises: ConfigurationError, which never repeats the password or anything that may be a part of it.
    """
    kind, tls, rest = _split_scheme(url)
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    _check_stray_at_sign(kind, authority, slash + path, query)
    login, has_login, places = authority.rpartition("@")
    username, password = _parse_login(login) if has_login else (None, None)
    options = _parse_query(query, kind, tls)
    db = int(options.pop("db", 0))
    read = {"single": _single, "cluster": _cluster, "sentinel": _sentinel, "unix": _local, "embedded": _local}[kind]
    found = read(kind, places, _decoded(slash + path) if kind in ("unix", "embedded") else path)
    if found.db and db:
        raise ConfigurationError("the Redis URL gives the database twice, in the path and as ?db=: give it once")
    if kind == "embedded" and has_login:
        raise ConfigurationError("an embedded server has no users: write embedded:// without user name and password")
    return replace(found, db=found.db or db, username=username, password=password, tls=tls, options=options)


def _split_scheme(url: str) -> tuple[Kind, bool, str]:
    known = ", ".join(f"{name}://" for name in SCHEMES)
    if not isinstance(url, str):
        raise ConfigurationError(f"a Redis URL must be a str, not {type(url).__name__}")
    scheme, separator, rest = url.strip().partition("://")
    meaning = SCHEMES.get(scheme.lower()) if separator else None
    if meaning is not None:
        return *meaning, rest
    if not separator:
        raise ConfigurationError(f"the Redis URL has no scheme: start it with one of {known}")
    # Quote only what looks like a scheme: a password may contain "://" as well.
    shown = repr(scheme) if len(scheme) <= 20 and scheme.replace("+", "").replace("-", "").isalnum() else "of the URL"
    close = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)
    hint = f"did you mean {close[0]}://? " if close else ""
    raise ConfigurationError(f"unknown scheme {shown}; {hint}available: {known}")


def _check_stray_at_sign(kind: Kind, authority: str, path: str, query: str) -> None:
    # "redis://:pa/ss@host" reads as host "", port "pa", path "/ss@host": without this check the message about
    # the bad port would show a part of the password.
    stray = "@" in query or ("@" in path and (kind not in ("unix", "embedded") or bool(authority)))
    if stray or "#" in authority + path + query:
        raise ConfigurationError(
            "the Redis URL has an @ or # in the wrong place: percent-encode any user name, password or other "
            "part that contains / ? # @ or % (use urllib.parse.quote(text, safe=''))"
        )


def _parse_login(login: str) -> tuple[str | None, str | None]:
    username, _, password = login.partition(":")
    return _decoded(username) or None, _decoded(password) or None


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        # `from None`, because the cause would show the text.
        raise ConfigurationError("a percent-encoded part of the Redis URL is not UTF-8") from None


def _single(kind: Kind, places: str, path: str) -> Address:
    hosts = _parse_hosts(kind, places or "localhost", REDIS_PORT)
    if len(hosts) > 1:
        raise ConfigurationError(
            "a Redis URL with several hosts needs the scheme redis+cluster:// or redis+sentinel:// (rediss+... "
            "with TLS), not redis://"
        )
    return Address(kind, hosts, db=_parse_db(path))


def _cluster(kind: Kind, places: str, path: str) -> Address:
    if _parse_db(path):
        raise ConfigurationError("a Redis Cluster has only database 0: remove the database from the URL")
    return Address(kind, _parse_hosts(kind, places or "localhost", REDIS_PORT))


def _sentinel(kind: Kind, places: str, path: str) -> Address:
    service_name, _, db = path.partition("/")
    if not service_name:
        raise ConfigurationError(f"the Redis URL has no service name: write {_EXAMPLES[kind]}")
    hosts = _parse_hosts(kind, places or "localhost", SENTINEL_PORT)
    return Address(kind, hosts, db=_parse_db(db), service_name=_decoded(service_name))


def _local(kind: Kind, places: str, path: str) -> Address:
    if places:
        raise ConfigurationError(
            f"the Redis URL must not have a host, and needs three slashes before the path: {_EXAMPLES[kind]}"
        )
    if kind == "unix" and path in ("", "/"):
        raise ConfigurationError(f"the Redis URL has no socket path: write {_EXAMPLES[kind]}")
    return Address(kind, path=path if path not in ("", "/") else None)


def _parse_hosts(kind: Kind, places: str, default_port: int) -> tuple[tuple[str, int], ...]:
    return tuple(_parse_host(kind, place, default_port) for place in places.split(","))


def _parse_host(kind: Kind, place: str, default_port: int) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        is_sound = bool(bracket) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = place.partition(":")
        is_sound = ":" not in port
    host = _decoded(host)
    if kind == "single" and not host:
        host = "localhost"
    if not is_sound or not host or any(not c.isprintable() or c in "[] " for c in host):
        raise ConfigurationError(
            f"a host in the Redis URL is invalid: write {_EXAMPLES[kind]}, and an IPv6 address in brackets: [::1]:6379"
        )
    return host, _parse_port(port) if port else default_port


def _parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65_535):
        # Not quoted: in "redis://user:password", which has no host, it is the password.
        raise ConfigurationError("the port in the Redis URL, after the host, must be a number from 1 to 65535")
    return int(text)


def _parse_db(text: str) -> int:
    text = text.rstrip("/")
    if text and not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ConfigurationError("the database in the Redis URL, after the last /, must be a number such as 0")
    return int(text or 0)


# --- query parameters -----------------------------------------------------------------------------


def _text(name: str, value: str) -> str:
    if not value and name != "prefix":
        raise ConfigurationError(f"the parameter {name} in the Redis URL must not be empty")
    return value


def _seconds(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"the parameter {name} in the Redis URL must be a positive number of seconds")
    return number


def _flag(name: str, value: str) -> bool:
    flags = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if value.lower() not in flags:
        raise ConfigurationError(f"the parameter {name} in the Redis URL must be true or false")
    return flags[value.lower()]


def _database(_name: str, value: str) -> int:
    return _parse_db(value)


_PARAMETERS: Final[Mapping[str, Callable[[str, str], Option]]] = {
    "prefix": _text,
    "client_name": _text,
    "socket_timeout": _seconds,
    "socket_connect_timeout": _seconds,
    "ssl_ca_certs": _text,
    "ssl_certfile": _text,
    "ssl_keyfile": _text,
    "ssl_check_hostname": _flag,
    "db": _database,
}
_REFUSED: Final[Mapping[str, str]] = {
    "protocol": "Penstock chooses the protocol version: remove the parameter",
    "password": "write the password before the host, as in redis://user:password@host, where it is masked in logs",
    "username": "write the user name before the host, as in redis://user:password@host",
}


def _parse_query(query: str, kind: Kind, tls: bool) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for item in filter(None, query.split("&")):
        name, _, value = item.partition("=")
        if name in _REFUSED:
            raise ConfigurationError(f"the parameter {name} is not allowed in a Redis URL: {_REFUSED[name]}")
        if name not in _PARAMETERS:
            raise _unknown_parameter(name)
        if name in options:
            raise ConfigurationError(f"the parameter {name} appears twice in the Redis URL")
        if name.startswith("ssl_") and not tls:
            raise ConfigurationError(f"the parameter {name} needs TLS: use the scheme rediss:// (or rediss+...://)")
        if name == "db" and kind in ("cluster", "embedded"):
            raise ConfigurationError(f"the parameter db does not apply to a URL such as {_EXAMPLES[kind]}")
        options[name] = _PARAMETERS[name](name, _decoded(value.replace("+", " ")))
    return options


def _unknown_parameter(name: str) -> ConfigurationError:
    close = difflib.get_close_matches(name, _PARAMETERS, n=1)
    shown = repr(name) if name.isidentifier() and len(name) <= 40 else "in the URL"
    hint = f"did you mean {close[0]}? " if close else ""
    return ConfigurationError(f"unknown parameter {shown}; {hint}available: {', '.join(_PARAMETERS)}")
