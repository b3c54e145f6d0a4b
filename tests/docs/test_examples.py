"""The examples run as they stand, with the embedded server that they start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.usefixtures("server_program")


def test_the_basic_worker_ships_all_orders_but_the_one_that_is_given_up() -> None:
    printed = run("basic_worker.py")
    assert printed.count("is on its way") == 19
    assert "order 7 is on its way (attempt 3)" in printed
    assert "order 13 was given up: fatal" in printed
    assert "FatalError: the customer has cancelled" in printed


def test_the_sync_worker_stores_every_reading() -> None:
    assert run("sync_worker.py") == "acknowledged 1000, tried again 100, left 0\n"


def run(example: str) -> str:
    """Returns what an example prints."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / example)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
