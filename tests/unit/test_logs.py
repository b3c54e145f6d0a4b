"""Errors that no log could hold are written all the same."""

from __future__ import annotations

import io
import logging

import pytest


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("nothing to say")


@pytest.mark.parametrize("error", [ValueError("\ud83d half of a pair"), Mute(), ValueError("x" * 10_000_000)])
def test_a_traceback_is_written_whatever_its_error_says(error: BaseException) -> None:
    raw = io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    logger = logging.getLogger("penstock.streams")
    logger.addHandler(handler)
    try:
        try:
            raise error
        except BaseException:
            logger.exception("the handler failed")
    finally:
        logger.removeHandler(handler)
    written = raw.getvalue().decode()
    assert len(written) < 10_000
    assert "the handler failed\nTraceback" in written
    assert f"{type(error).__name__}: " in written.rpartition("raise error\n")[2]
