"""A Go peer as a test sees it: what it has said so far, signals and commands to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults.worker_process import WorkerProcess


class GoPeer(WorkerProcess):
    """One process of `peer/`."""

    def __init__(self, program: Path, address: str, name: str, options: Sequence[str], log: Path) -> None:
        self._launch([str(program), "-address", address, *options], log, POD_NAME=name)

    def tell(self, command: str) -> None:
        """Gives the peer a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
