"""The folder of results, which the driver and all executors must share: a dead letter goes when its result is there."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.settings import ResultBackendSettings
from penstock.spark.pipeline.writing.counting import FilesMissing


@contextmanager
def marked(results: ResultBackendSettings) -> Iterator[str | None]:
    """Keep an empty file in the folder, for tasks to look at; None where results do not lie in files."""
    if results.provider != "fs":
        yield None
        return
    root = Path(results.root).absolute()
    root.mkdir(parents=True, exist_ok=True)
    mark = root / f".shared-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def check_mark(mark: str | None) -> None:
    """Raise FilesMissing where the file cannot be seen; in a task, before it does anything."""
    if mark is not None and not Path(mark).exists():
        raise FilesMissing(
            f"{mark}, which the driver has made, is not there on {socket.gethostname()}: name a folder for --results "
            "that the driver and all executors share, or another back-end. Nothing was handled there"
        )
