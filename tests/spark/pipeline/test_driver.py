"""One driver at a time runs on a checkpoint, and others can tell what became of it. Nothing here needs Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.pipeline.status import Driver, PipelineBusy, last_state
from tests.helpers.processes import running

HOLDS = """
import sys
from pathlib import Path
from penstock.spark.pipeline.status import Driver
with Driver(Path(sys.argv[1])).alone():
    print("alone", flush=True)
    sys.stdin.read()
"""


def test_a_second_driver_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with Driver(tmp_path).alone() as first:
        assert str(last_state(tmp_path)).startswith("running since")
        with pytest.raises(
            PipelineBusy, match=f"process {os.getpid()} on .* already runs a pipeline with the checkpoint"
        ):
            Driver(tmp_path).alone().__enter__()
        assert str(last_state(tmp_path)).startswith("running since")
        first.end("stopped")
    assert str(last_state(tmp_path)).startswith("stopped at")
    with Driver(tmp_path).alone():
        pass


def test_a_driver_that_fails_leaves_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the sky"), Driver(tmp_path / "new").alone():
        raise ValueError("the sky\nfell")
    word = last_state(tmp_path / "new")
    assert word is not None
    assert (word.state, word.why) == ("failed", "the sky fell")


def test_a_killed_driver_is_known_as_such_and_in_nobodys_way(tmp_path: Path) -> None:
    assert last_state(tmp_path) is None
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"alone\n"
        with pytest.raises(PipelineBusy, match=f"process {process.pid} "):
            Driver(tmp_path).alone().__enter__()
        os.kill(process.pid, signal.SIGKILL)
    assert str(last_state(tmp_path)).startswith(f"crashed: process {process.pid} on ")
    with Driver(tmp_path).alone():
        pass
