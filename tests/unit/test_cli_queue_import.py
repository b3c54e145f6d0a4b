"""`penstock queue import` tells what it did, and in its exit code whether something is left."""

from __future__ import annotations

import json

import pytest
import redis
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.redis.embedded import EmbeddedServer
from tests.helpers.list_queue import restore


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["queue", "import", *words])


def test_a_queue_is_imported(default_server: EmbeddedServer, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    result = run("orders", "--url", default_server.unix_url)
    assert result.exit_code == 0, result.output
    assert "4 waiting\n" in result.output
    assert "1 abandoned in flight\n" in result.output
    assert "8 deduplication keys\n" in result.output
    assert raw.xlen("orders") == 5


def test_a_dry_run_tells_the_same_and_does_nothing(default_server: EmbeddedServer, raw: redis.Redis) -> None:
    restore(raw, "abandoned")
    result = run("orders", "--url", default_server.unix_url, "--dry-run")
    assert result.output.startswith("To import:\n          4 waiting\n")
    assert not raw.exists("orders")


@pytest.mark.parametrize("name", ["orders", "parcels"])
def test_what_is_left_is_told(default_server: EmbeddedServer, raw: redis.Redis, name: str) -> None:
    restore(raw, "held", lease_ms=600_000)
    result = run(name, "--url", default_server.unix_url)
    assert result.exit_code == 1
    assert ("run this again" if name == "orders" else "--include-unleased") in result.output
    assert run("parcels", "--url", default_server.unix_url, "--include-unleased").exit_code == 0


def test_the_report_is_there_as_json(default_server: EmbeddedServer, raw: redis.Redis) -> None:
    raw.lpush("orders/pending", "one")
    result = run("orders", "--url", default_server.unix_url, "--separator", "/", "--json")
    assert json.loads(result.output) == {
        "pending": 1,
        "processing": 0,
        "still_leased": 0,
        "without_lease": 0,
        "dead_letters": 0,
        "completed": 0,
        "failed": 0,
        "dedup_keys": 0,
        "is_complete": True,
        "is_dry_run": False,
    }
