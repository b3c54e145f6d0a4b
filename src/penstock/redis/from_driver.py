"""Creates a StreamClient with the connection settings of a redis-py client."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Any

from penstock.errors import ConfigurationTypeError
from penstock.redis.client import StreamClient
from penstock.redis.driver_kinds import is_awaited, is_pipeline, is_sentinel
from penstock.redis.settings import ConnectionSettings, Host
from penstock.runtime.aio import IS_ASYNC

_THIS_API, _OTHER_API = ("penstock", "penstock.sync") if IS_ASYNC else ("penstock.sync", "penstock")
_made: dict[int, StreamClient] = {}  # by the identity of the client, which need not be hashable
_making = threading.Lock()


def client_of(client: object, what: str = "client") -> StreamClient:
    """Return the StreamClient for a redis-py client, always the same one; return a StreamClient unchanged.

    Raises: ConfigurationTypeError for anything else, a client of the other half, a pipeline or a Sentinel.
    """
    if isinstance(client, StreamClient):
        return client
    if is_pipeline(client):
        raise ConfigurationTypeError(
            f"{what} is a pipeline, which sends nothing until execute(): pass the client it was created from"
        )
    if is_sentinel(client):
        raise ConfigurationTypeError(f"{what} is a Sentinel: pass the client that its master_for(name) returns")
    if isinstance(client, type) or not callable(getattr(client, "execute_command", None)):
        raise ConfigurationTypeError(
            f"{what} must be a redis-py client or a StreamClient from {_THIS_API}, not {type(client).__name__}"
        )
    if is_awaited(client) != IS_ASYNC:
        kind = "blocking" if IS_ASYNC else "asyncio"
        raise ConfigurationTypeError(
            f"{what} is {'a' if kind == 'blocking' else 'an'} {kind} redis-py client: use it with {_OTHER_API}"
        )
    with _making:
        known = _made.get(id(client))
        if known is None:
            known = _make(client, what)
            with suppress(TypeError):  # without weak references, nothing shows when it is no longer used
                weakref.finalize(client, _forget, id(client))
                _made[id(client)] = known
    return known


def _forget(identity: int) -> None:
    _made.pop(identity).abandon()


def is_cluster(client: Any) -> bool:
    """Return whether the client, or the one that it wraps, is for a Redis Cluster."""
    return _nodes(client) is not None or bool(getattr(client, "is_cluster", False))


def decodes(client: Any) -> bool:
    """Return whether the client returns str rather than bytes; a StreamClient does."""
    if isinstance(client, StreamClient):
        return True
    return bool(_options(client).get("decode_responses", False))


def _nodes(client: Any) -> Any:
    return getattr(client, "nodes_manager", None)


def _options(client: Any) -> dict[str, Any]:
    nodes = _nodes(client)
    if nodes is not None:
        return dict(getattr(nodes, "connection_kwargs", None) or getattr(client, "connection_kwargs", {}))
    pool = getattr(client, "connection_pool", None)
    return dict(getattr(pool, "connection_kwargs", {}))


def _make(client: Any, what: str) -> StreamClient:
    options = _options(client)
    if not options:
        raise ConfigurationTypeError(
            f"{what}, a {type(client).__name__}, does not expose its server's address: pass the redis-py client "
            "that it wraps, or a StreamClient"
        )
    pool = getattr(client, "connection_pool", None)
    settings: dict[str, Any] = {
        **_place(client, pool, options),
        "username": options.get("username"),
        "password": options.get("password"),
        "credential_provider": options.get("credential_provider"),
        "client_name": options.get("client_name"),
        **_tls(pool, options),
        **_timeouts(options),
    }
    return StreamClient._of(ConnectionSettings(**settings), "")  # noqa: SLF001


def _place(client: Any, pool: Any, options: dict[str, Any]) -> dict[str, Any]:
    nodes = _nodes(client)
    if nodes is not None:
        return {"kind": "cluster", "hosts": _startup_hosts(nodes)}
    sentinels = getattr(pool, "sentinel_manager", None)
    if sentinels is not None:
        login = _options(sentinels.sentinels[0])
        return {
            "kind": "sentinel",
            "hosts": tuple(_host(_options(sentinel)) for sentinel in sentinels.sentinels),
            "service_name": pool.service_name,
            "db": options.get("db") or 0,
            "sentinel_username": login.get("username"),
            "sentinel_password": login.get("password"),
        }
    if options.get("path"):
        return {"kind": "unix", "hosts": (), "path": options["path"], "db": options.get("db") or 0}
    return {"kind": "single", "hosts": (_host(options),), "db": options.get("db") or 0}


def _host(options: dict[str, Any]) -> Host:
    return str(options.get("host") or "localhost"), int(options.get("port") or 6379)


def _startup_hosts(nodes: Any) -> tuple[Host, ...]:
    known = getattr(nodes, "nodes_cache", None) or getattr(nodes, "startup_nodes", {})
    return tuple((str(node.host), int(node.port)) for node in known.values())


def _tls(pool: Any, options: dict[str, Any]) -> dict[str, Any]:
    made = getattr(pool, "connection_class", None)
    is_tls = bool(options.get("ssl")) or (made is not None and "SSL" in made.__name__)
    if not is_tls:
        is_tls = any(isinstance(options.get(name), str) for name in ("ssl_ca_certs", "ssl_certfile"))
    if not is_tls:
        return {}
    # All of them: another connection of the same API of redis-py accepts the same options.
    given = {name: value for name, value in options.items() if name.startswith("ssl_") and value is not None}
    return {"tls": True, "tls_options": given}


def _timeouts(options: dict[str, Any]) -> dict[str, Any]:
    # None means "for ever" to redis-py; a connection that never times out would make every fault a hang.
    found: dict[str, Any] = {}
    if options.get("socket_timeout"):
        found["socket_timeout_s"] = float(options["socket_timeout"])
    if options.get("socket_connect_timeout"):
        found["connect_timeout_s"] = float(options["socket_connect_timeout"])
    return found
