"""`penstock demo` proves its point, ends by itself, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import Listed, listed, running
from tests.helpers.threads import eventually
from tests.spark.conftest import java  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("server_program")
ARGUMENTS = ["demo", "--messages", "400", "--no-spark"]
# Whoever runs the tests in the background has SIGINT ignored, and children inherit that; a shell in the foreground has not.
HEARS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from penstock.cli import main
main()
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*(3|4|9)[0-7]")
DEADLINE_S = 60.0
SPARK_DEADLINE_S = 240.0


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty directory for temporary files: its name is in the command line of everything the demo starts."""
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the demo in a session of its own, as a terminal would."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        demo = subprocess.Popen(
            [sys.executable, "-c", HEARS_CTRL_C, *ARGUMENTS, *arguments],
            env={**os.environ, "TMPDIR": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(demo)
        return demo

    yield run
    for demo in started:
        demo.kill()
        demo.communicate(timeout=DEADLINE_S)


def processes_of(home: Path) -> list[Listed]:
    return [process for process in listed() if str(home) in process.command]


def worker_pids(home: Path) -> list[int]:
    return [process.pid for process in processes_of(home) if "demo.worker" in process.command]


def assert_nothing_is_left(home: Path) -> None:
    assert processes_of(home) == []
    assert list(home.iterdir()) == []


def wait_for(text: str, demo: subprocess.Popen[str]) -> str:
    """Reads what the demo tells until it tells the text."""
    assert demo.stderr is not None
    told = ""
    while text not in told:
        line = demo.stderr.readline()
        assert line, f"the demo ended before it told {text!r}:\n{told}"
        told += line
    return told


def test_every_order_is_in_exactly_one_place_after_a_worker_was_killed(home, start):
    demo = start("--json", "--seed", "5")
    out, told = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 0, told
    summary = json.loads(out)
    balance = summary["balance"]
    assert summary["is_balanced"] is True
    assert summary["is_finished"] is True
    assert balance["published"] == 400
    assert balance["acknowledged"] == 395
    assert balance["dead_lettered"] == 5
    assert balance["queued"] == balance["lost"] == balance["doubled"] == 0
    assert summary["dead_letters"] == {"max_deliveries": 3, "fatal": 1, "decode_error": 1}
    assert summary["killed"] in {"worker-1", "worker-2"}
    assert summary["held"] > 0
    assert summary["recovery_s"] >= 1.0, "the lease of the dead worker must run out first"
    assert summary["handled_again"] > 0
    assert summary["runs"] == balance["acknowledged"] + summary["duplicates"]
    assert f"{summary['killed']} was killed while holding {summary['held']} orders" in told
    assert_nothing_is_left(home)


def test_without_a_terminal_it_tells_plain_lines_and_ends_with_a_table(home, start):
    demo = start()
    out, told = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 0, told
    assert "\x1b" not in out + told
    assert "published 400" in told
    assert "The balance holds: published 400 = acknowledged 395 + dead-lettered 5 + queued 0." in out
    for row in ("published", "acknowledged", "dead-lettered", "still queued", "recovery", "duplicates", "throughput"):
        assert re.search(rf"^ +{row} ", out, re.MULTILINE), out
    assert_nothing_is_left(home)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.timeout(300)
def test_spark_counts_the_same_orders(home, start):
    demo = start("--json", "--spark")
    out, told = demo.communicate(timeout=SPARK_DEADLINE_S)
    assert demo.returncode == 0, told
    spark = json.loads(out)["spark"]
    assert spark["in_redis"] == spark["parquet"] == spark["ids"] == spark["back_in_redis"] == 400
    assert spark["kinds"] == {"good": 395, "poison": 3, "fatal": 1, "not JSON": 1}
    assert "400 orders are in Parquet" in told
    assert_nothing_is_left(home)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.timeout(300)
def test_ctrl_c_ends_spark_as_well(home, start):
    demo = start("--spark")
    wait_for("is running; reading the orders", demo)
    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate(timeout=SPARK_DEADLINE_S)
    assert demo.returncode == 130
    assert "Traceback" not in told
    eventually(lambda: not processes_of(home) and not list(home.iterdir()), DEADLINE_S)


@pytest.mark.parametrize("moment", ["is running", "started, one process each", "was killed"])
def test_ctrl_c_leaves_no_process_and_no_file_behind(home, start, moment):
    demo = start()
    wait_for(moment, demo)
    demo.send_signal(signal.SIGINT)
    out, told = demo.communicate(timeout=DEADLINE_S)
    assert_nothing_is_left(home)
    assert demo.returncode == 130
    assert "Stopped; server and workers have ended." in told
    assert "Traceback" not in told
    assert out == ""


def test_being_told_to_end_leaves_no_process_and_no_file_behind(home, start):
    demo = start()
    wait_for("started, one process each", demo)
    demo.send_signal(signal.SIGTERM)
    _, told = demo.communicate(timeout=DEADLINE_S)
    assert_nothing_is_left(home)
    assert demo.returncode == 143
    assert "Traceback" not in told


def test_workers_and_server_go_even_when_the_demo_itself_is_killed(home, start):
    demo = start()
    wait_for("was killed", demo)
    demo.kill()
    demo.communicate(timeout=DEADLINE_S)
    eventually(lambda: not processes_of(home) and not list(home.iterdir()), DEADLINE_S)


def test_a_worker_that_dies_by_itself_is_a_failure_and_is_named(home, start):
    demo = start()
    wait_for("was killed", demo)
    os.kill(worker_pids(home)[0], signal.SIGKILL)
    out, told = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 1
    assert re.search(r"penstock: demo worker worker-\d ended with code -9", told), told
    assert "Traceback" not in told
    assert out == ""
    assert_nothing_is_left(home)


@pytest.mark.slow
def test_no_color_is_honoured_on_a_terminal(home):
    environment = {**os.environ, "TMPDIR": str(home), "TERM": "xterm-256color", "NO_COLOR": "1"}
    shown = on_a_terminal(environment)
    assert "\x1b[?25l" in shown, "it did not notice the terminal"
    assert not COLOUR.search(shown)
    assert "The balance holds" in shown


def on_a_terminal(environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock", *ARGUMENTS]
    with running(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal as an error
    os.close(ours)
    assert demo.returncode == 0
    return shown.decode()


def test_a_demo_that_stays_says_how_to_look_and_leaves_nothing_behind(home, start):
    demo = start("--stay")
    told = wait_for("Ctrl-C stops everything.", demo)
    url = re.search(r"export PENSTOCK_URL=(\S+)", told)[1]
    words = [sys.executable, "-m", "penstock", "stream", "info", "orders", "--json", "--url", url]

    def length() -> int:
        return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["length"]

    before = length()
    eventually(lambda: length() > before, DEADLINE_S)
    dashboard = re.search(r"^(http://127.0.0.1:\d+) \(actions allowed\)", told, re.MULTILINE)[1]
    with urllib.request.urlopen(f"{dashboard}/streams.json", timeout=DEADLINE_S) as answer:
        assert "orders" in {stream["name"] for stream in json.load(answer)["page"]["items"]}
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 130
    assert "The balance holds" in out
    assert_nothing_is_left(home)
