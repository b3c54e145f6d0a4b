"""Which interpreter runs a peer: Penstock's own, or a virtual environment of the peer, made on demand with uv."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
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
    "redis-message-queue": ("redis-message-queue==5.0.0", "redis[hiredis]==8.1.0", "tenacity==9.2.1"),
    "redis-stream-queue": ("redis-stream-queue==0.1.3", "redis[hiredis]==8.1.0"),
    "rq": ("rq==2.12.0", "redis[hiredis]==8.1.0"),
    "saq": ("saq[redis]==0.26.4", "redis[hiredis]==7.4.1", "typing-extensions==4.16.0"),
    "taskiq": ("taskiq[uv]==0.13.0", "taskiq-redis==1.2.4", "redis[hiredis]==8.1.0"),
}

# Peers that need a newer Python than ours may be.
OLDEST_PYTHON = {"redis-message-queue": (3, 12)}


class EnvironmentUnavailable(RuntimeError):
    """The virtual environment of a peer cannot be made here."""


@dataclass(frozen=True)
class Interpreter:
    """A Python to start a peer with."""

    path: str
    source: Path | None = None
    """The code of Penstock, where the peer is Penstock."""

    def environment(self) -> dict[str, str]:
        """Returns the variables with which the interpreter finds this harness."""
        paths = [ROOT, self.source] if self.source else [ROOT]
        return {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONUNBUFFERED": "1"}


def interpreter(name: str) -> Interpreter:
    """Returns the interpreter of an environment and makes the environment if it is missing or has other pins.

    Raises: EnvironmentUnavailable.
    """
    if name == OWN:
        return Interpreter(sys.executable, ROOT / "src")
    if name.startswith(f"{OWN}@"):
        return Interpreter(sys.executable, _code_of(name.removeprefix(f"{OWN}@")))
    folder = _FOLDER / name
    note = folder / "pins.txt"
    python, version = _python(OLDEST_PYTHON.get(name, (3, 0)))
    wanted = "\n".join([version, *PINS[name]])
    if not note.exists() or note.read_text() != wanted:
        _make(folder, python, PINS[name])
        note.write_text(wanted)
    return Interpreter(str(folder / "bin" / "python"))


def _code_of(commit: str) -> Path:
    """Unpacks Penstock as it was at a commit; it runs with the dependencies of today."""
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=False)
    if packed.returncode:
        raise EnvironmentUnavailable(packed.stderr.decode().strip())
    folder = _FOLDER / f"penstock@{commit}"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def _make(folder: Path, python: str, pins: tuple[str, ...]) -> None:
    uv = _uv()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = str(folder / "bin" / "python")
    for command in (
        [uv, "venv", "--python", python, str(folder)],
        [uv, "pip", "install", "--python", made, *pins],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise EnvironmentUnavailable(f"`{' '.join(command[1:3])}` failed: {result.stderr.strip()[-400:]}")


def _python(oldest: tuple[int, int]) -> tuple[str, str]:
    """Returns an installed interpreter that is new enough, ours if it is, and its version."""
    if sys.version_info >= oldest:
        return sys.executable, sys.version
    on_path = [found for minor in range(oldest[1], 20) if (found := shutil.which(f"python3.{minor}"))]
    of_pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python")))
    for path in [*on_path, *of_pyenv]:
        asked = f"import sys; print(sys.version_info >= {oldest}, sys.version)"
        answer = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)  # may be a mere shim
        is_new_enough, _, version = answer.stdout.partition(" ")
        if is_new_enough == "True":
            return path, version
    raise EnvironmentUnavailable(f"it needs Python {oldest[0]}.{oldest[1]} or newer, and none is installed")


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise EnvironmentUnavailable("uv is neither in the project's environment nor on PATH")
    return found
