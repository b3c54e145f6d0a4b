"""The keys that the settings name: for commands, workers, consumers and the dashboard."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from penstock import dashboard
from penstock.errors import ConfigurationError, FatalError
from penstock.protection import Protection, is_protected
from penstock.redis.client import StreamClient as AsyncClient
from penstock.sync import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage
from penstock.tasks import RedisTaskQueue
from tests.cli.conftest import Command
from tests.dashboard.conftest import running

pytestmark = pytest.mark.usefixtures("default_server")
AsJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Protection:
    file = tmp_path / "keys.toml"
    file.write_text(f'mode = "sign"\n[keys]\na = "{base64.b64encode(bytes(32)).decode()}"\n')
    monkeypatch.setenv("PENSTOCK__TASK_QUEUE__PROTECTION_FILE", str(file))
    return Protection.from_file(file)


def fail(message: StreamMessage) -> None:
    raise FatalError(f"order {message.data['n']} has no address")


@pytest.fixture
def letter(penstock: Command, redis_url: str, raw: redis.Redis, keys: Protection) -> str:
    """The id of a dead letter with a signed payload."""
    penstock("stream", "publish", "orders", '{"n": 1}')
    with StreamClient.from_url(redis_url, protection=keys) as client:
        consumer = StreamConsumer(client, "orders", ConsumerConfig(group="shop", block_ms=10), message_handler=fail)
        consumer.run_once()
        consumer.close()
    return str(raw.xrange("orders_dlq")[0][0].decode())


def test_messages_are_published_shown_and_consumed(penstock: Command, as_json: AsJson, raw: redis.Redis) -> None:
    penstock("stream", "publish", "orders", '{"n": 1}')
    assert is_protected(raw.xrange("orders")[0][1][b"data"])
    assert as_json("stream", "peek", "orders")["payload"] == {"n": 1}
    raw.xgroup_create("orders", "shop", "0")
    penstock("consume", "tests.cli.jobs:ship", "--stream", "orders", "--group", "shop", "--burst")
    assert raw.xinfo_groups("orders")[0]["entries-read"] == 1
    assert not raw.exists("orders_dlq")


def test_tasks_are_sent_and_run(penstock: Command, as_json: AsJson, raw: redis.Redis) -> None:
    task_id = as_json("task", "send", "pid")["id"]
    penstock("worker", "tests.cli.jobs:handlers", "--burst")
    assert as_json("task", "result", task_id)["status"] == "ok"


def test_a_payload_that_is_edited_is_protected_again(
    penstock: Command, as_json: AsJson, raw: redis.Redis, keys: Protection, letter: str
) -> None:
    assert as_json("dlq", "show", letter)["payload"] == {"n": 1}
    penstock("dlq", "edit", letter, "--payload", '{"n": 2}', "--yes")
    [fields] = [fields for _, fields in raw.xrevrange("orders", count=1)]
    assert is_protected(fields[b"data"])
    assert as_json("stream", "peek", "orders", "-n", "1")["payload"] == {"n": 2}


def test_the_dashboard_shows_payloads_for_editing(
    penstock: Command, monkeypatch: pytest.MonkeyPatch, redis_url: str, letter: str, keys: Protection
) -> None:
    made = list[dict[str, Any]]()
    monkeypatch.setattr(dashboard, "create_app", lambda _, **options: made.append(options))
    monkeypatch.setattr("penstock.dashboard.server.DashboardServer.run", lambda _: None)
    penstock("dashboard")
    assert isinstance(made[0]["protection"], Protection)
    monkeypatch.undo()
    with running(redis_url, protection=keys) as address:
        found = httpx.get(f"{address}/dead-letter.json", params={"stream": "orders_dlq", "id": letter}, timeout=60)
    assert (found.json()["is_editable"], found.json()["editable"]) == (True, {"n": 1})


def test_without_the_keys_payloads_stay_closed(as_json: AsJson, monkeypatch: pytest.MonkeyPatch, letter: str) -> None:
    monkeypatch.delenv("PENSTOCK__TASK_QUEUE__PROTECTION_FILE")
    assert as_json("dlq", "show", letter)["payload"] != {"n": 1}


def test_a_file_without_keys_is_one_line(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("mode = 'sign'")
    assert "penstock: a Protection needs at least one key" in penstock("stream", "ls", code=2).stderr


async def test_a_client_brings_its_own_protection(redis_url: str, keys: Protection) -> None:
    async with AsyncClient.from_url(redis_url) as client:
        for make in (RedisTaskQueue, dashboard.create_app):
            with pytest.raises(ConfigurationError, match="pass protection to the client"):
                make(client, protection=keys)
