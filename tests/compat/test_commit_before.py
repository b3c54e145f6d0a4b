"""Processes of this commit and of the one before it work on the same keys: an upgrade needs no pause."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _commit_before() -> str:
    """Returns the commit before this one; skips, with the remedy, where its files cannot be had."""
    if shutil.which("git") is None:
        pytest.skip("needs the files of the commit before: install git and run the tests in a clone")
    asked = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD~1^{commit}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(
            "needs the files of the commit before: run the tests in a clone with history (git fetch --unshallow)"
        )
    return found.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server_program")
def test_what_either_of_two_commits_has_begun_the_other_finishes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "side_by_side.py"), _commit_before()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("ok ") == 8, ended.stdout
