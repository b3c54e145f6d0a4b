"""A private server on a free loopback port, without persistence, for one measurement."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections import Counter
from typing import Self

import redis

from bench import server_binary

_START_PATIENCE_S = 5.0
# Commands of the driver itself, which must not be charged to a peer.
_OWN_COMMANDS = {"info", "monitor", "echo", "ping", "client|info", "xinfo|groups"}


class ServerFailed(RuntimeError):
    """The server did not start."""


class Server:
    """Starts the server on entry and stops only that process on exit."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.client = redis.Redis(port=self.port, socket_timeout=60, protocol=2)
        self._folder = tempfile.TemporaryDirectory(prefix="bench-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Returns the process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name]
        options += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self._process = subprocess.Popen(
            [server_binary.find(), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_it_answers()
        except ServerFailed:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def version(self) -> str:
        """Returns the name and version of the server."""
        info = self.client.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info.get('valkey_version', info['redis_version'])}"

    def own_address(self) -> str:
        """Returns the address under which the server sees the driver."""
        return str(self.client.client_info()["addr"])

    def command_calls(self) -> Counter[str]:
        """Returns how often each command was executed, those inside scripts included."""
        stats = self.client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        return Counter({name: count for name, count in calls.items() if name not in _OWN_COMMANDS})

    def _stop(self) -> None:
        assert self._process is not None
        self.client.close()
        self._process.kill()  # there is nothing to save
        self._process.wait()
        self._folder.cleanup()

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + _START_PATIENCE_S
        while not self._is_up():
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"No server of this run answers on port {self.port}.")
            time.sleep(0.01)

    def _is_up(self) -> bool:
        try:
            # The port was free a moment ago, but a stranger's server may have taken it since.
            return bool(self.client.info("server")["process_id"] == self.pid)
        except redis.ConnectionError:
            return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
