"""StreamClient: access to Redis for producers, consumers and groups."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.encode_errors import type_name
from penstock.errors import (
    ClientClosed,
    CommandTimeout,
    ConfigurationError,
    ConfigurationTypeError,
    ConnectionFailed,
    ConnectionLost,
    PenstockError,
    PermissionDenied,
    ReadOnlyServer,
    ServerError,
    UnsupportedServer,
)
from penstock.keys import StreamKeys
from penstock.protection import Protection
from penstock.redis.address import Address, parse_url
from penstock.redis.aio import Connection, Reply
from penstock.redis.capabilities import MINIMUM, PROBED, Capabilities, describe, known_commands, parse_info
from penstock.redis.dead_letter_retention import DeadLetterRetention
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.loop_connections import LoopConnections
from penstock.redis.master_watch import MasterReplaced, watch_of
from penstock.redis.packing import Command
from penstock.redis.retry import BUSY, Repeat, pause_s
from penstock.redis.scripts import Script, script
from penstock.redis.settings import ConnectionSettings, Host, checked_hosts, checked_tls, settings_of
from penstock.redis.translate import Redirected, ScriptMissing, checked
from penstock.runtime.aio import IS_ASYNC, Flag, at_end, call_in_loop, connection_scope, is_alive, pause

_TRIES = 3
_BUSY_BUDGET_S = 5.0
_SHORT_REST_S = 0.05


class StreamClient:
    """A client for one Redis or Valkey server, cluster or Sentinel group.

    Connects on first use. Connections belong to the event loop that opened them, so one client may serve several loops
    in succession. Close the client yourself: producers and consumers never do.

    Programs create a client with its class, `from_url()`, `from_cluster()`, `from_sentinel()` or `embedded()`, and use
    `ping()`, `capabilities()`, `keys()`, `is_cluster` and `close()`. The other methods serve the parts of Penstock, and
    may change.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        username: str | None = None,
        password: str | None = None,
        prefix: str = "",
        max_connections: int = 1000,
        pool_timeout: float = 5,
        client_name: str | None = None,
        ssl: bool = False,
        socket_timeout: float = 30.0,
        socket_connect_timeout: float = 5.0,
        socket_keepalive: bool = True,
        socket_keepalive_options: Mapping[int, int] | None = None,
        protection: Protection | None = None,
        dead_letter_limits: DeadLetterLimits | Mapping[str, Any] | str | None = None,
        **tls_options: Any,
    ) -> None:
        settings = ConnectionSettings(
            hosts=((host, port),),
            db=db,
            username=username,
            password=password,
            client_name=client_name,
            tls=ssl,
            tls_options=checked_tls(tls_options),
            socket_timeout_s=socket_timeout,
            connect_timeout_s=socket_connect_timeout,
            keepalive=socket_keepalive,
            keepalive_options=socket_keepalive_options,
            max_connections=max_connections,
            pool_timeout_s=pool_timeout,
        )
        self._setup(settings, prefix, protection, dead_letter_limits)

    def _setup(
        self, settings: ConnectionSettings, prefix: str, protection: Protection | None = None, limits: object = None
    ) -> None:
        if protection is not None and not isinstance(protection, Protection):
            raise ConfigurationError(f"protection must be a Protection, not {type(protection).__name__}")
        self.settings, self.prefix, self.protection = settings, prefix, protection
        self.dead_letter_retention = DeadLetterRetention(self, DeadLetterLimits.of(limits))
        self._server: EmbeddedServer | None = None
        self._watch = watch_of(settings)
        self._by_loop: dict[object, LoopConnections] = {}
        self._making = threading.Lock()
        self._rng = random.Random()
        self._is_closed = False
        self._capabilities: Capabilities | None = None

    @classmethod
    def _of(
        cls, settings: ConnectionSettings, prefix: str, protection: Protection | None = None, limits: object = None
    ) -> Self:
        client = cls.__new__(cls)
        client._setup(settings, prefix, protection, limits)  # noqa: SLF001
        return client

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Create a client from a URL: redis, rediss, unix, redis+cluster, rediss+cluster, redis+sentinel or embedded.

        Takes the options of the constructor, which override those of the URL.
        """
        address = parse_url(url)
        given = {**address.options, **options}
        if address.kind == "embedded":
            return cls.embedded(directory=address.path, **given)
        return cls._from_address(address, given)

    @classmethod
    def _from_address(cls, address: Address, given: dict[str, Any]) -> Self:
        prefix, protection = given.pop("prefix", ""), given.pop("protection", None)
        limits = given.pop("dead_letter_limits", None)
        return cls._of(settings_of(address, given), prefix, protection, limits)

    @classmethod
    def from_cluster(
        cls,
        startup_nodes: Sequence[Mapping[str, Any]],
        password: str | None = None,
        username: str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> Self:
        """Create a client for a Redis Cluster from some of its nodes, each a mapping with `host` and `port`."""
        hosts = checked_hosts("startup_nodes", startup_nodes)
        address = Address(kind="cluster", hosts=hosts, username=username, password=password)
        return cls._from_address(address, {**options, "prefix": prefix})

    @classmethod
    def from_sentinel(
        cls, sentinels: Sequence[Mapping[str, Any] | tuple[str, int]], service_name: str, **options: Any
    ) -> Self:
        """Create a client for the master that the Sentinels report for a service."""
        hosts = checked_hosts("sentinels", sentinels)
        if not service_name:
            raise ConfigurationError("service_name must be the name of the master that the Sentinels monitor")
        return cls._from_address(Address(kind="sentinel", hosts=hosts, service_name=service_name), options)

    @classmethod
    def embedded(cls, directory: str | None = None, prefix: str = "", **options: Any) -> Self:
        """Start a private server on a unix socket and create a client for it; close() stops the server.

        With a directory, the data is kept there between runs.
        """
        server = EmbeddedServer(directory=directory, persistent=directory is not None)
        server.start()
        try:
            address = Address(kind="unix", hosts=(), path=server.unix_socket)
            made = cls._from_address(address, {**options, "prefix": prefix})
        except BaseException:
            server.stop()
            raise
        made._server = server  # noqa: SLF001
        return made

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close the connections of this client, and stop the embedded server if it has one."""
        self._is_closed = True
        scope = connection_scope()
        for owner, connections in list(self._by_loop.items()):
            if owner is scope:
                del self._by_loop[owner]
                await connections.end()
            else:
                call_in_loop(owner, connections.abort)  # of another thread; the rest is closed when its event loop ends
        if self._server is not None:
            self._server.stop()

    def abandon(self) -> None:
        """Drop all connections without waiting, from any thread: for a client that can no longer be closed."""
        self._is_closed = True
        for owner, connections in list(self._by_loop.items()):
            call_in_loop(owner, connections.abort)

    def __repr__(self) -> str:
        """Show the address, without secrets."""
        return f"StreamClient({self.settings.kind} {self.settings.where})"

    # --- names --------------------------------------------------------------------------------------

    @property
    def is_cluster(self) -> bool:
        """Whether keys that change together must share a hash tag."""
        return self.settings.kind == "cluster"

    def keys(self, stream: str) -> StreamKeys:
        """Return the keys of a stream, with the prefix of this client."""
        return StreamKeys.of(stream, self.prefix)

    # --- commands -----------------------------------------------------------------------------------

    async def _connections(self) -> LoopConnections:
        if self._is_closed:
            raise ClientClosed(f"{self!r} is closed; create a new client")
        scope = connection_scope()
        connections = self._by_loop.get(scope)
        if connections is None or connections.is_closed:
            made = LoopConnections(self.settings)
            with self._making:
                for owner in [
                    owner
                    for owner, connections in self._by_loop.items()
                    if connections.is_closed or not is_alive(owner)
                ]:
                    del self._by_loop[owner]
                connections = self._by_loop.setdefault(scope, made)
            if connections is made:
                connections.end = await at_end(connections.close)
        return connections

    async def connection(self, key: str, ask_host: Host | None = None) -> Connection:
        """Return the shared connection to the server of the key, or to the one that an ASK reply named."""
        connections = await self._connections()
        return await connections.to(ask_host or await connections.locator.locate(key))

    def ready(self) -> Connection | None:
        """Return the shared connection if it is open and this is not a cluster or Sentinel client."""
        settings, connections = self.settings, self._by_loop.get(connection_scope())
        if connections is None or self._is_closed or settings.kind not in ("single", "unix"):
            return None
        connection = connections.shared.get(settings.hosts[0] if settings.hosts else ("", 0))
        return connection if connection is not None and connection.is_open else None

    async def to_masters(self) -> list[Connection]:
        """Return the shared connections to all servers that serve keys."""
        connections = await self._connections()
        return [await connections.to(host) for host in await connections.locator.masters()]

    async def masters(self) -> list[Host]:
        """Return host and port of all servers that serve keys."""
        return await (await self._connections()).locator.masters()

    async def dedicated(self, key: str, ask_host: Host | None = None) -> Connection:
        """Open a connection for the caller alone; closing the client closes it, too."""
        connections = await self._connections()
        return await connections.open(ask_host or await connections.locator.locate(key))

    async def refresh(self) -> None:
        """Look up again which server serves which key."""
        (await self._connections()).locator.refresh()

    async def rest(self, seconds: float) -> None:
        """Wait before a retry, but not longer than until another server becomes a master."""
        if self._watch is None:
            await pause(seconds)
            return
        has_changed = Flag()
        with self._watch.notifying(has_changed.set_from_outside) as has_just_changed:
            await has_changed.wait(min(seconds, _SHORT_REST_S) if has_just_changed else seconds)

    async def call(
        self, key: str, *command: bytes | str | int, repeat: Repeat = Repeat.READ, waits: bool = True
    ) -> Reply:
        """Send a command to the server of the key; retry it after failures as `repeat` allows.

        Also retries while the server is busy, for a few seconds, unless `waits` is false.
        """
        return (await self._deliver(key, command, repeat, waits))[0]

    async def run(
        self, name: str, keys: Sequence[str], args: Sequence[bytes | str | int], repeat: Repeat, waits: bool = True
    ) -> Reply:
        """Run a script on the server of its first key."""
        wanted = script(name)
        try:
            return await self.call(keys[0], "EVALSHA", wanted.sha, len(keys), *keys, *args, repeat=repeat, waits=waits)
        except ScriptMissing:
            return await self.call(keys[0], "EVAL", wanted.source, len(keys), *keys, *args, repeat=repeat, waits=waits)

    async def _deliver(self, key: str, command: Command, repeat: Repeat, waits: bool) -> list[Reply]:
        failures, busy_until, ask_host = 0, time.monotonic() + _BUSY_BUDGET_S, None
        while True:
            connection = None
            try:
                connection = await self.connection(key, ask_host)
                commands = [("ASKING",), command] if ask_host else [command]
                replies = await connection.pipeline(commands)
                if isinstance(replies[-1], PenstockError):
                    raise replies[-1]
                return replies[-1:]
            except ScriptMissing:
                raise
            except Redirected as error:
                ask_host = error.ask_host
                await self.leave(connection, error)
                if time.monotonic() > busy_until:
                    raise
            except PenstockError as error:
                failures += 1
                if not repeat.allows(error) or self._is_hopeless(error, connection, failures, busy_until):
                    raise
                ask_host = None
                await self.leave(connection, error)
                if isinstance(error, BUSY) and not waits:
                    raise
                await pause(pause_s(failures, self._rng))

    @staticmethod
    def _is_hopeless(error: PenstockError, connection: Connection | None, failures: int, busy_until: float) -> bool:
        # Temporary error replies are retried for some time, broken connections a few times, a server that cannot be
        # reached or does not answer not at all. A connection that breaks during its handshake counts as broken.
        has_broken = isinstance(error.__cause__, ConnectionLost) and not isinstance(error.__cause__, CommandTimeout)
        is_absent = isinstance(error, ConnectionFailed) and not isinstance(error, MasterReplaced)
        if is_absent and connection is None and not has_broken:
            return True
        is_reply = not isinstance(error, ConnectionFailed | ConnectionLost)
        return time.monotonic() > busy_until if is_reply else failures >= _TRIES

    async def leave(self, connection: Connection | None, error: PenstockError) -> None:
        """Drop the connection to a server after an error which means that another one may serve the key."""
        if isinstance(error, ReadOnlyServer) and connection is not None:
            connection.abort()  # a replica keeps connections open, and its name may lead elsewhere
        if isinstance(error, Redirected) and error.moved_to is not None:
            (await self._connections()).locator.move(error.slot, error.moved_to)
            return
        is_moved = isinstance(error, Redirected) and error.ask_host is None
        if is_moved or isinstance(error, ConnectionLost | ConnectionFailed | ReadOnlyServer):
            await self.refresh()

    async def kill_abandoned(self, key: str, connection: Connection | None) -> None:
        """Make the server close an abandoned connection, whose last command may still be in transit.

        Best effort: if the ACL forbids it or Redis is down, messages that were delivered to it wait for their lease to
        expire.
        """
        if connection is None or not connection.client_id:
            return
        with suppress(PenstockError):
            if (await self.connection(key)).where == connection.where:  # elsewhere the id is that of another client
                await self.call(key, "CLIENT", "KILL", "ID", connection.client_id)

    async def load(self, connection: Connection, scripts: Sequence[Script]) -> None:
        """Load the scripts into the server of a connection."""
        checked(await connection.pipeline([("SCRIPT", "LOAD", wanted.source) for wanted in scripts]))

    # --- questions to the server --------------------------------------------------------------------

    async def ping(self) -> bool:
        """Return True when the server answers."""
        return bool(await self.call("", "PING") == b"PONG")

    async def capabilities(self) -> Capabilities:
        """Return the server's capabilities, queried once; raise UnsupportedServer if it is too old."""
        if self._capabilities is None:
            names = (MINIMUM, *PROBED)
            told = await self._if_allowed("COMMAND", "INFO", *names)
            # If COMMAND INFO is forbidden, assume the oldest supported server.
            commands = frozenset({MINIMUM}) if told is None else known_commands(names, told)
            info = parse_info((await self._if_allowed("INFO") or b"").decode())
            config: dict[str, str] = {}
            for setting in ("appendfsync", "maxmemory-policy"):
                reply = await self._if_allowed("CONFIG", "GET", setting) or []
                config |= {reply[i].decode(): reply[i + 1].decode() for i in range(0, len(reply), 2)}
            found = describe(info, commands, config)
            if MINIMUM not in commands:
                raise UnsupportedServer(f"{found.product} {found.version} is not supported: use 6.2 or newer")
            self._capabilities = found
        return self._capabilities

    async def _if_allowed(self, *command: str) -> Reply | None:
        try:
            return await self.call("", *command)
        except (PermissionDenied, ServerError):
            return None  # forbidden, or renamed, on many managed servers


def check_client(client: object) -> None:
    """Raise ConfigurationError unless this is a StreamClient of the same API, async or sync."""
    if not isinstance(client, StreamClient):
        half = "penstock" if IS_ASYNC else "penstock.sync"
        raise ConfigurationTypeError(
            f"client must be a StreamClient of {half}, not {type_name(client)}: use StreamClient.from_url(...)"
        )
