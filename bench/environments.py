"""Which interpreter runs a peer: Penstock's own, or a virtual environment of the peer, made on demand with uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FOLDER = Path(__file__).resolve().parent / ".venvs"
OWN = "own"

# Every foreign package that is measured, pinned. All get hiredis, which redis-py recommends and a plain install does
# not bring: it makes redis-stream-queue drain nearly twice as fast, and a lead over a peer held back means little.
PINS: dict[str, tuple[str, ...]] = {
    "arq": ("arq==0.28.0", "redis[hiredis]==5.3.1"),
    "dramatiq": ("dramatiq[redis]==2.2.1", "redis[hiredis]==8.1.0"),
    "faststream": ("faststream[redis]==0.7.8", "pydantic==2.14.3", "redis[hiredis]==8.1.0"),
    "huey": ("huey==3.5.4", "redis[hiredis]==8.1.0"),
    "redis-stream-queue": ("redis-stream-queue==0.1.3", "redis[hiredis]==8.1.0"),
    "rq": ("rq==2.12.0", "redis[hiredis]==8.1.0"),
    "saq": ("saq[redis]==0.26.4", "redis[hiredis]==7.4.1", "typing-extensions==4.16.0"),
    "taskiq": ("taskiq[uv]==0.13.0", "taskiq-redis==1.2.4", "redis[hiredis]==8.1.0"),
}


class EnvironmentUnavailable(RuntimeError):
    """The virtual environment of a peer cannot be made here."""


@dataclass(frozen=True)
class Interpreter:
    """A Python to start a peer with."""

    path: str
    is_own: bool

    def environment(self) -> dict[str, str]:
        """Returns the variables with which the interpreter finds this harness."""
        paths = [ROOT, ROOT / "src"] if self.is_own else [ROOT]
        return {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONUNBUFFERED": "1"}


def interpreter(name: str) -> Interpreter:
    """Returns the interpreter of an environment and makes the environment if it is missing or has other pins.

    Raises: EnvironmentUnavailable.
    """
    if name == OWN:
        return Interpreter(sys.executable, is_own=True)
    folder = _FOLDER / name
    note = folder / "pins.txt"
    wanted = "\n".join([sys.version, *PINS[name]])
    if not note.exists() or note.read_text() != wanted:
        _make(folder, PINS[name])
        note.write_text(wanted)
    return Interpreter(str(folder / "bin" / "python"), is_own=False)


def _make(folder: Path, pins: tuple[str, ...]) -> None:
    uv = _uv()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin" / "python")
    for command in (
        [uv, "venv", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--python", python, *pins],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise EnvironmentUnavailable(f"`{' '.join(command[1:3])}` failed: {result.stderr.strip()[-400:]}")


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise EnvironmentUnavailable("uv is neither in the project's environment nor on PATH")
    return found
