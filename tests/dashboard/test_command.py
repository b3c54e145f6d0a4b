"""`penstock dashboard`, as a user runs it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import typer.main

from penstock.cli.app import app
from penstock.dashboard.presentation import environment
from tests.helpers.processes import running
from tools.cli_reference import leaves

pytestmark = pytest.mark.usefixtures("default_server")


@contextmanager
def started(url: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts the command and yields it with the address that it prints."""
    command = [sys.executable, "-m", "penstock", "dashboard", "--url", url, "--port", "0", *words]
    with running(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:  # a server that is away is logged first
            said.append(line)
            if found := re.search(r"http://\S+", line):
                break
        else:
            pytest.fail("".join(said))
        yield process, found[0]
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_a_browser_looks(redis_url: str, number: signal.Signals) -> None:
    with started(redis_url) as (process, address), httpx.stream("GET", f"{address}events", timeout=60) as feed:
        next(feed.iter_lines())
        process.send_signal(number)
        assert process.wait(60) in {0, 130, -number}
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("options", [(), ("-q",)], ids=["", "quiet"])
def test_on_other_addresses_it_makes_a_token_and_prints_it(redis_url: str, options: tuple[str, ...]) -> None:
    with started(redis_url, "--host", "0.0.0.0", *options) as (_, address):
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(here.partition("/login")[0] + "/streams.json", timeout=60).status_code == 401
        assert httpx.get(here, timeout=60).status_code == 303


def test_a_token_that_was_given_is_not_printed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DASHBOARD_TOKEN", "a-token-of-the-tests")
    with started(redis_url) as (_, address):
        assert address.endswith("/login")
        assert httpx.get(f"{address}?token=a-token-of-the-tests", timeout=60).status_code == 303


def test_it_waits_for_a_server_that_is_away_and_says_so_on_its_pages() -> None:
    with started("redis://127.0.0.1:1/0") as (process, address):
        assert "cannot connect to Redis at 127.0.0.1:1" in httpx.get(address, timeout=60).text
        assert httpx.get(f"{address}workers.json", timeout=60).status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in {0, -signal.SIGTERM}
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_told_in_one_line(redis_url: str) -> None:
    with started(redis_url) as (_, address):
        port = address.rstrip("/").rpartition(":")[2]
        command = [sys.executable, "-m", "penstock", "dashboard", "--url", redis_url, "--port", port]
        failed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 2
    assert re.fullmatch(r"penstock: the dashboard cannot listen on .+\n", failed.stderr)


def test_the_commands_that_empty_pages_name_exist() -> None:
    tree = {path for path, _ in leaves(typer.main.get_command(app))}
    templates = environment()
    assert templates.loader is not None
    sources = [templates.loader.get_source(templates, name)[0] for name in templates.list_templates()]
    named = {tuple(words.split()) for text in sources for words in re.findall(r'"penstock ([a-z]+(?: [a-z]+)?)', text)}
    assert len(named) > 8
    assert [words for words in named if words not in tree and words[:1] not in tree] == []
