"""A real Redis or Valkey server as a private child process: no Docker, no root, nothing left behind."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import hiredis

from penstock.errors import ConfigurationError
from penstock.redis.probe import ask
from penstock.redis.server_binary import find_server_binary

LOOPBACK = "127.0.0.1"

# Below the ports that Linux and macOS give to outgoing connections, so that a port stays ours over a restart;
# with room for a cluster bus at port + 10000.
_PORTS = range(11_000, 22_000)
_PORT_TRIES = 50
_RESERVED_PORTS = 100
_reservations: deque[int] = deque()
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 104 bytes on macOS and 108 on Linux
_STOP_TIMEOUT_S = 5.0
_LOCK_TIMEOUT_S = 5.0
_POLL_S = 0.01
_LOG_TAIL_LINES = 15
_OWNER_ONLY = 0o700

# The watchdog notices the end of our process by the end of its standard input; a line before that says that there is
# nothing left to do. It is a process and not PR_SET_PDEATHSIG, which is bound to the starting *thread*
# and would leave the files. The working directory proves that the process id is still our server's.
_WATCHDOG = """
is_alive() { if [ -d /proc/self ]; then [ "$(readlink "/proc/$server/cwd")" = "$data" ]; else kill -0 "$server"; fi; }
data=$1 home=$2
IFS= read -r server
IFS= read -r farewell && exit 0
if [ -n "$server" ] && is_alive; then
    kill -TERM "$server"
    for turn in 1 2 3 4 5 6 7 8 9 10; do is_alive || break; sleep 0.2; done
    is_alive && kill -KILL "$server"
fi
rm -rf -- "$home"
"""


class EmbeddedServer:
    """A server process on a private unix socket, and on a loopback TCP port when `port` is given (0: any free one).

    Without `directory` the data lives in a temporary directory and goes with the server; with it the data stays there,
    written to an append-only file unless `persistent` says otherwise. `options` are further settings of the server, as
    in its configuration file. The server ends with `stop()`, with the `with` block, or with our process.
    """

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        persistent: bool | None = None,
        port: int | None = None,
        options: Mapping[str, str | Sequence[str]] | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        self._binary = binary
        self._directory = None if directory is None else Path(directory)
        self._is_persistent = directory is not None if persistent is None else persistent
        self._wanted_port = port
        self._options = dict(options or {})
        self._start_timeout_s = start_timeout_s
        self._port: int | None = None
        self._owner = 0
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server."""
        if self._process is None:
            raise ConfigurationError("This embedded server is not running: call start() first.")
        return self._process.pid

    @property
    def unix_socket(self) -> str:
        """The path of the server's unix socket."""
        return str(self._private_folder() / "server.sock")

    @property
    def port(self) -> int | None:
        """The TCP port on the loopback interface, or None when there is only the unix socket."""
        return self._port

    @property
    def unix_url(self) -> str:
        """The URL of the unix socket."""
        return f"unix://{self.unix_socket}"

    @property
    def url(self) -> str:
        """The URL of the TCP port when one was asked for, else that of the unix socket."""
        return self.unix_url if self._port is None else f"redis://{LOOPBACK}:{self._port}/0"

    def start(self) -> Self:
        """Starts the server and returns when it answers; does nothing when it runs already.

        Raises:
            ConfigurationError: no server program was found, the port or the directory is taken, or the server did
                not come up; then the end of its log is in the message.

        """
        if self.is_running:
            return self
        self._end(signal.SIGKILL)  # it may have crashed: its watchdog has nothing more to watch
        self._owner = os.getpid()
        binary = find_server_binary(self._binary)
        if self._home is None:
            self._home = _make_home()
        if self._wanted_port is not None and self._port is None:
            self._port = self._wanted_port or free_port()
        try:
            self._launch(binary, self._home)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the server, asking first, and removes what it kept in the temporary directory."""
        if self._owner != os.getpid():
            return  # a forked child inherits this object, not the server
        self._end(signal.SIGTERM)
        self._remove_home()
        self._port = None

    def kill(self) -> None:
        """Kills the server on the spot, as a crash would; `restart()` brings it back on the same data and port."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the server if it runs, and starts it again on the same directory, socket and port."""
        self._end(signal.SIGTERM)
        self.start()

    # --- the process ------------------------------------------------------------------------------

    def _launch(self, binary: Path, home: Path) -> None:
        if self._port is not None and not _is_free(self._port):
            raise ConfigurationError(f"TCP port {self._port} is already in use: pass port=0 to use any free port.")
        data = (self._directory or home).resolve()
        data.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
        with (home / "server.log").open("ab") as log, _locked(data) as lock:
            self._watchdog = _start_watchdog(data, home)
            self._process = subprocess.Popen(
                [binary, *self._arguments(data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
                pass_fds=[lock.fileno()],  # the server holds the lock for as long as it lives
                start_new_session=True,  # Ctrl-C is for us; the server outlives our own clean-up
                umask=0o077,  # its files contain every message
            )
            _write_line(self._watchdog, str(self._process.pid))

    def _arguments(self, data: Path) -> list[str]:
        settings: dict[str, str | Sequence[str]] = {
            "port": str(self._port or 0),
            "bind": LOOPBACK,
            "unixsocket": self.unix_socket,
            "unixsocketperm": "700",
            "dir": str(data),
            "save": "",
            "appendonly": "yes" if self._is_persistent else "no",
            **self._options,
        }
        arguments = []
        for name, value in settings.items():
            arguments += [f"--{name}", *([value] if isinstance(value, str) else value)]
        return arguments

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while self.is_running:
            if _answers(self.unix_socket):
                return
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"The embedded server did not answer within {self._start_timeout_s} s.{self._log_tail()}"
                )
            time.sleep(_POLL_S)
        raise ConfigurationError(f"The embedded server exited during startup.{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = (self._private_folder() / "server.log").read_text(errors="replace").splitlines()
        return "\n  ".join([" Last lines of its log:", *lines[-_LOG_TAIL_LINES:]])

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._watchdog is not None:
            _write_line(self._watchdog, "")
            self._watchdog.communicate()
            self._watchdog = None

    # --- its files --------------------------------------------------------------------------------

    def _private_folder(self) -> Path:
        if self._home is None:
            raise ConfigurationError("This embedded server is not running: call start() first.")
        return self._home

    def _remove_home(self) -> None:
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None


def free_port() -> int:
    """Returns a loopback TCP port that is free, and whose cluster bus port (10000 above) is free as well.

    It stays reserved for this process until it asks for a hundred others: another process that looks before the port is
    opened, or while its server is down, gets a different one.
    """
    for port in random.SystemRandom().sample(_PORTS, _PORT_TRIES):
        reservation = _reserve(port)
        if reservation is None:
            continue
        if _is_free(port) and _is_free(port + 10_000):
            _reservations.append(reservation)
            if len(_reservations) > _RESERVED_PORTS:
                os.close(_reservations.popleft())
            return port
        os.close(reservation)
    raise ConfigurationError(f"There is no free TCP port from {_PORTS.start} to {_PORTS.stop - 1}.")


def _reserve(port: int) -> int | None:
    """Returns a file descriptor that reserves the port, by binding the UDP port of the same number."""
    attempt = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        attempt.bind((LOOPBACK, port))
    except OSError:
        attempt.close()
        return None
    return attempt.detach()


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _answers(unix_socket: str) -> bool:
    try:
        reply = ask(unix_socket, "PING", timeout_s=1.0)
    except OSError:
        return False
    if isinstance(reply, hiredis.ReplyError):
        return not str(reply).startswith("LOADING")  # NOAUTH and NOPERM come from a server that is up
    return True


def _make_home() -> Path:
    home = tempfile.mkdtemp(prefix="penstock-")
    if len(os.fsencode(home)) + len("/server.sock") > _LONGEST_SOCKET_PATH:
        Path(home).rmdir()
        home = tempfile.mkdtemp(prefix="penstock-", dir="/tmp")
    return Path(home)


def _locked(data: Path) -> IO[bytes]:
    """Opens the lock file of a data directory: two servers that write one append-only file would destroy it."""
    lock = (data / "penstock.lock").open("ab")
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The server of a process that has just died may still be exiting.
            if time.monotonic() > deadline:
                lock.close()
                raise ConfigurationError(
                    f"Another embedded server uses the directory {data}: give each server its own."
                ) from None
            time.sleep(_POLL_S)
        else:
            return lock


def _start_watchdog(data: Path, home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "penstock-watchdog", data, home],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _write_line(watchdog: subprocess.Popen[bytes], word: str) -> None:
    with suppress(BrokenPipeError):  # the watchdog was killed
        assert watchdog.stdin is not None
        watchdog.stdin.write(f"{word}\n".encode())
        watchdog.stdin.flush()
