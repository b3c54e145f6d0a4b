"""Errors that no log could hold are written all the same."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

import penstock


class Mute(Exception):
    def __str__(self) -> str:
        raise GeneratorExit


class Asking(logging.Handler):
    """As formatters of JSON do: it asks the error itself."""

    told = ""

    def emit(self, record: logging.LogRecord) -> None:
        assert record.exc_info is not None
        self.told = str(record.exc_info[1])


@pytest.mark.parametrize("error", [ValueError("\ud83d half of a pair"), Mute(), ValueError("x" * 10_000_000)])
def test_a_traceback_is_written_whatever_its_error_says(error: BaseException) -> None:
    raw = io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    logger = logging.getLogger("penstock.streams")
    asking = Asking()
    logger.addHandler(handler)
    logger.addHandler(asking)
    try:
        try:
            raise error
        except BaseException:
            logger.exception("the handler failed")
    finally:
        logger.removeHandler(handler)
        logger.removeHandler(asking)
    assert asking.told.encode()
    written = raw.getvalue().decode()
    assert len(written) < 10_000
    assert "the handler failed\nTraceback" in written
    assert f"{type(error).__name__}: " in written.rpartition("raise error\n")[2]


def test_every_logger_of_the_library_is_known() -> None:
    root = Path(penstock.__file__).parent
    wanted: set[str] = set()
    for file in root.rglob("*.py"):
        module = ".".join(("penstock", *file.relative_to(root).with_suffix("").parts))
        for name in re.findall(r'getLogger\((__name__|"penstock\.[^"]+")\)', file.read_text()):
            wanted.add(module if name == "__name__" else name.strip('"'))
    assert {name for name in wanted if not logging.getLogger(name).filters} == set()
