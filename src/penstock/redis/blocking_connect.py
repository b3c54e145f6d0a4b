"""Opens a connection for threads: redis-py connects and logs in (TCP, TLS, AUTH, SELECT), then the socket is ours."""

from __future__ import annotations

from typing import Any

import redis as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.redis.blocking import Connection
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import connect_error


def untyped(made_by_driver: Any) -> Any:
    """Return it as it is: redis-py's blocking half has no types for its constructors."""
    return made_by_driver


def no_retry() -> Retry:
    """Return the rule that the driver never repeats anything: what may be repeated is decided in retry.py."""
    return Retry(NoBackoff(), 0)


def connect(settings: ConnectionSettings, host: Host) -> Connection:
    """Open a connection to a server."""
    where = settings.where if settings.kind in ("single", "unix") else f"{host[0]}:{host[1]}"
    options = settings.driver_options() | {"retry": no_retry(), "db": settings.db}
    # The handshake is part of connecting and gets the connect timeout, not that of commands.
    options["socket_timeout"] = settings.connect_timeout_s
    if settings.path:
        made: Any = untyped(driver.UnixDomainSocketConnection)(path=settings.path, **options)
    elif settings.tls:
        made = untyped(driver.SSLConnection)(host=host[0], port=host[1], **options, **settings.tls_options)
    else:
        made = untyped(driver.Connection)(host=host[0], port=host[1], **options)
    try:
        made.connect()
    except (OSError, TimeoutError, driver.RedisError) as error:
        made.disconnect()
        raise connect_error(error, where) from error
    connection = Connection(settings.socket_timeout_s, where)
    # Taken from redis-py before it can close it.
    connected, made._sock = made._sock, None  # noqa: SLF001
    connection.adopt(connected)
    return connection
