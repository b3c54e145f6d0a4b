"""Who tries the documentation: a user without the rights of root, with a home, a folder and a Python that it may read."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.spark.runtime.files import cache_directory
from penstock.testing import ServerMissing

_NOBODY = pwd.getpwnam("nobody")
_SOURCE = Path(penstock.__file__).resolve().parents[1]
_CACHED = ("classes", "spark-home")  # what makes the starts of Spark fast
_KEPT = ("LANG", "LC_ALL", "TZ")
_LOOK = "import penstock.spark, pyspark, deltalake; from penstock.spark.runtime.java import ensure_java; print(ensure_java())"


@dataclass(frozen=True)
class Reader:
    """A user; `identity` is for subprocess.Popen, `place` a folder of its own, `env` its environment."""

    place: Path
    env: dict[str, str]
    identity: dict[str, Any]

    def folder(self, name: str) -> Path:
        """Return a new folder of this user."""
        made = self.place / name
        made.mkdir(parents=True)
        self.own(made)
        return made

    def own(self, path: Path) -> None:
        """Make the user the owner of a file or a folder, and of all in it."""
        if self.identity:
            for each in [path, *path.rglob("*")]:
                os.chown(each, _NOBODY.pw_uid, _NOBODY.pw_gid, follow_symlinks=False)


@contextmanager
def reader() -> Iterator[Reader]:
    """Prepare a user: nobody where the tests run as root, else the one who runs them.

    Raises:
        ServerMissing: nobody cannot run this Python.

    """
    place = Path(tempfile.mkdtemp(prefix="penstock-reader-"))
    try:
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            identity = {"user": _NOBODY.pw_uid, "group": _NOBODY.pw_gid, "extra_groups": []}
        place.chmod(0o755)
        made = Reader(place, {key: os.environ[key] for key in _KEPT if key in os.environ}, identity)
        home, temporary = made.folder("home"), made.folder("tmp")
        programs = Path(sys.prefix) / "bin"
        if identity:
            made.env["USER"] = made.env["LOGNAME"] = _NOBODY.pw_name
            if not _can_enter(Path(sys.base_prefix)):
                programs = _copied_python(place / "python", made.env)
        made.env.update(
            HOME=str(home),
            TMPDIR=str(temporary),
            PATH=os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"]),
            PYTHONPATH=str(_SOURCE),
            SPARK_SUBMIT_OPTS=f"-Djava.io.tmpdir={temporary}",
        )
        _copy_cache(made, home / ".cache" / "penstock")
        made.env["JAVA_HOME"] = _java_of(made)
        yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _can_enter(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in [path, *path.parents])


def _copied_python(place: Path, env: dict[str, str]) -> Path:
    """Copy a Python out of a folder that only root may enter, and return the folder of its programs.

    Its packages stay where they are.
    """
    base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = place / "base" / "lib"
    (place / "base" / "bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / version, place / "base" / "bin" / version)
    without = shutil.ignore_patterns("site-packages", "test", "config-*", "idlelib", "ensurepip")
    shutil.copytree(base / "lib" / version, library / version, copy_function=_linked, ignore=without)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(shared, library / shared.name)
    env["LD_LIBRARY_PATH"] = str(library)
    python = place / "base" / "bin" / version
    subprocess.run([python, "-m", "venv", "--without-pip", place / "venv"], env={**os.environ, **env}, check=True)
    (packages,) = Path(sys.prefix).glob(f"lib/{version}/site-packages")
    (own,) = (place / "venv").glob(f"lib/{version}/site-packages")
    (own / "packages.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    programs = place / "venv" / "bin"
    for file in (Path(sys.prefix) / "bin").iterdir():
        if not (programs / file.name).exists() and not file.name.startswith("activate"):
            _take_over(file, programs)
    return programs


def _take_over(program: Path, programs: Path) -> None:
    """Make a program of the environment one of the copied Python."""
    own = programs / program.name
    head = program.read_bytes()[:200]
    if re.match(rb"#!\S*/python[\d.]*\n", head):
        own.write_text(re.sub(r"\A#!\S*", f"#!{programs / 'python'}", program.read_text()))
        own.chmod(0o755)
    else:
        own.symlink_to(program)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _copy_cache(made: Reader, place: Path) -> None:
    place.mkdir(mode=0o700, parents=True)
    for kind in _CACHED:
        with suppress(FileNotFoundError):  # nobody has made it
            shutil.copytree(cache_directory() / kind, place / kind, symlinks=True)
    made.own(place.parent)


def _java_of(made: Reader) -> str:
    words = ["python", "-c", _LOOK]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@"', "bash", *words],
        env=made.env,
        cwd=made.place,
        capture_output=True,
        text=True,
        check=False,
        **made.identity,
    )
    if done.returncode:
        raise ServerMissing(
            f"The user nobody cannot run the Python of the tests: {done.stderr.strip()[-300:]}. "
            "Put the repository and its .venv where others may read them, or run the tests without root rights."
        )
    return done.stdout.strip()
