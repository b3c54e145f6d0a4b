"""The Go peer, built once, and Python peers beside it. Left out unless asked for: `make test` does not need Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.redis.embedded import LOOPBACK, EmbeddedServer
from tests.faults.worker_process import WorkerProcess
from tests.interop.go_peer import GoPeer

SOURCE = Path(__file__).parent / "peer"

if os.environ.get("PENSTOCK_INTEROP") != "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test time for `go build`, which the first one waits for."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go peer as a program."""
    go = shutil.which("go")
    assert go, "Go is missing: install it (https://go.dev/dl), or leave `make test-interop` out"
    program = tmp_path_factory.mktemp("go") / "peer"
    built = subprocess.run([go, "build", "-o", program, "."], cwd=SOURCE, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture
def server(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that both sides reach."""
    return start_server(port=0)


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        yield client


@pytest.fixture
def go_peer(go_program: Path, server: EmbeddedServer, tmp_path: Path) -> Iterator[Callable[..., GoPeer]]:
    """Starts a Go peer."""
    started: list[GoPeer] = []

    def start(name: str, *options: str, waits: bool = True) -> GoPeer:
        peer = GoPeer(go_program, f"{LOOPBACK}:{server.port}", name, options, tmp_path / f"go-{name}.log")
        started.append(peer)
        if waits:
            peer.wait_for("ready")
        return peer

    yield start
    for peer in started:
        peer.close()


@pytest.fixture
def python_peer(server: EmbeddedServer, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a Python peer as a process."""
    started: list[WorkerProcess] = []

    def start(name: str, **settings: Any) -> WorkerProcess:
        job = {"url": server.unix_url, "name": name, "settings": settings}
        peer = WorkerProcess(job, tmp_path / f"{name}.log", "tests.faults.balancer_peer")
        started.append(peer)
        peer.wait_for("ready")
        return peer

    yield start
    for peer in started:
        peer.close()
