"""A server whose clock can be set, and nobody else's, by libfaketime."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.testing import ServerMissing

MISSING = "no libfaketime, which sets the clock of a server: apt-get install faketime"


def faketime_library() -> str | None:
    """Return the path of libfaketime, or None where it is not installed."""
    found = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    spec = importlib.util.find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        found += Path(spec.origin).parent.glob("**/libfaketime.so.1")
    return str(found[0]) if found else None


@contextmanager
def under_a_clock(file: Path) -> Iterator[None]:
    """Have every program that is started meanwhile read its time from a file: `+3600` is an hour ahead.

    Raises:
        ServerMissing: libfaketime is not installed.

    """
    library = faketime_library()
    if library is None:
        raise ServerMissing(MISSING)
    file.write_text("+0")
    changed = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
