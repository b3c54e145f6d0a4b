"""A master, a replica and Sentinels as loopback processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from penstock.redis.embedded import LOOPBACK, EmbeddedServer, free_port
from penstock.redis.probe import ask
from penstock.testing import ServerKind
from tests.helpers.missing import usual_server
from tests.helpers.threads import eventually

SERVICE = "main"


class SentinelGroup:
    """One master, one replica or more, and some Sentinels that watch them."""

    def __init__(
        self,
        folder: Path,
        sentinels: int = 1,
        replicas: int = 1,
        kind: ServerKind | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self._folder, self._count, self._replicas = folder, sentinels, replicas
        self._kind, self._options = kind or usual_server(), options or {}
        self._resources = ExitStack()
        self.servers: list[EmbeddedServer] = []
        self.sentinels: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def url(self) -> str:
        """The URL of the service."""
        return "redis+sentinel://" + ",".join(f"{host}:{port}" for host, port in self.sentinels) + f"/{SERVICE}"

    def master(self) -> EmbeddedServer:
        """Returns the server that the Sentinels name."""
        _, port = ask(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)  # type: ignore[misc]
        return next(server for server in self.servers if server.port == int(port))

    def agreed(self) -> EmbeddedServer | None:
        """Returns the server that most of the Sentinels name, if they agree."""
        named = [ask(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE) for address in self.sentinels]
        ports = [int(reply[1]) for reply in named if isinstance(reply, list)]
        return next((server for server in self.servers if 2 * ports.count(server.port or 0) > len(named)), None)

    def fail_over(self) -> None:
        """Has the replica promoted while the master lives, which is then demoted and hangs up on its clients."""
        before = self.master()
        eventually(lambda: ask(self.sentinels[0], "SENTINEL", "FAILOVER", SERVICE) == b"OK")
        eventually(lambda: self.master() is not before)
        # Sentinel does this as well, after some eight seconds.
        told(before.unix_socket, "REPLICAOF", LOOPBACK, self.master().port)
        told(before.unix_socket, "CLIENT", "KILL", "TYPE", "normal")

    def fail_over_unnoticed(self) -> EmbeddedServer:
        """Has the replica promoted and returns the master before, which never learns of it and serves its clients."""
        before = self.master()
        # As if no Sentinel got through to it, however long the test takes.
        assert told(before.unix_socket, "ACL", "SETUSER", "default", "-replicaof", "-slaveof") == b"OK"
        eventually(lambda: ask(self.sentinels[0], "SENTINEL", "FAILOVER", SERVICE) == b"OK")
        eventually(lambda: self.master() is not before)
        return before

    def _start(self) -> None:
        kind = self._kind
        binary = kind.binary()
        quick = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **self._options}
        master = self._resources.enter_context(kind.server(port=0, options=quick))
        following = {**quick, "replicaof": [LOOPBACK, str(master.port)]}
        replicas = [
            self._resources.enter_context(kind.server(port=0, options=following)) for _ in range(self._replicas)
        ]
        self.servers = [master, *replicas]
        for replica in replicas:
            eventually(lambda at=replica.unix_socket: b"master_link_status:up" in told(at, "INFO", "replication"))
        for number in range(self._count):
            self._start_sentinel(binary, number, master)
        for address in self.sentinels:
            eventually(lambda address=address: self._is_ready(address))

    def _start_sentinel(self, binary: Path, number: int, master: EmbeddedServer) -> None:
        port = free_port()
        settings = self._folder / f"sentinel{number}.conf"
        settings.write_text(
            f"sentinel monitor {SERVICE} {LOOPBACK} {master.port} {self._count // 2 + 1}\n"
            f"sentinel down-after-milliseconds {SERVICE} 2000\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        # A Sentinel is the same program with its own configuration file in front of the options.
        server = EmbeddedServer(
            _with_arguments(self._folder, binary, settings, number), port=port, options={"sentinel": []}
        )
        self._resources.enter_context(server)
        self.sentinels.append((LOOPBACK, port))

    def _is_ready(self, address: tuple[str, int]) -> bool:
        fields: Any = ask(address, "SENTINEL", "MASTER", SERVICE)
        if not isinstance(fields, list):
            return False
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        return (int(found[b"num-slaves"]), int(found[b"num-other-sentinels"])) == (self._replicas, self._count - 1)


def told(address: Any, *command: Any) -> Any:
    """Returns the reply of one server."""
    return ask(address, *command, timeout_s=30.0)


def _with_arguments(folder: Path, binary: Path, settings: Path, number: int) -> Path:
    script = folder / f"sentinel{number}"
    script.write_text(f'#!/bin/sh\nexec "{binary}" "{settings}" "$@"\n')
    script.chmod(0o755)
    return script
