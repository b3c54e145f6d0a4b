"""The reference names what the code has, with its defaults: nothing less, nothing more."""

from __future__ import annotations

import dataclasses
import inspect
import re
import signal  # noqa: F401  defaults are written with it
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import penstock
from penstock import errors, model, tasks, testing
from penstock.balancer.config import BalancerConfig
from penstock.events import EventName
from penstock.keys import BalancerKeys, StreamKeys
from penstock.policy import Reason
from penstock.queue import message_queue
from penstock.queue.options import UNSET
from penstock.queue.processing import Processing
from penstock.redis.scripts import names
from penstock.serializers import DEFAULT_MAX_BYTES
from tests.docs.pages import ROOT, prose, table_column

REFERENCE = ROOT / "docs" / "reference"
REQUIRED = inspect.Parameter.empty
# What other parts of Penstock use of a StreamClient.
INTERNAL = {
    "abandon", "call", "connection", "dedicated", "kill_abandoned", "leave", "load", "masters", "ready", "refresh",
    "rest", "run", "to_masters",
}  # fmt: skip
# What a queue takes where nothing was passed.
STANDS_FOR = {
    "get_deduplication_key": "SHA-256",
    "visibility_timeout_seconds": str(message_queue._DEFAULT_LEASE_S),
    "max_delivery_count": str(message_queue._DEFAULT_DELIVERIES),
    "max_payload_bytes": f"{DEFAULT_MAX_BYTES:_}",
}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the parameters of a function and their defaults."""
    kinds = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in kinds if p.name != "self" and p.kind is not inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize(
    ("page", "heading", "function"),
    [
        ("client.md", "## Constructor", penstock.StreamClient.__init__),
        ("producer.md", "## Constructor", penstock.StreamProducer.__init__),
        ("producer.md", "## push", penstock.StreamProducer.push),
        ("consumer.md", "## Constructor", penstock.StreamConsumer.__init__),
        ("consumer-config.md", "## Settings", penstock.ConsumerConfig),
        ("dead-letters.md", "## DeadLetterLimits", penstock.DeadLetterLimits),
        ("tasks.md", "## RedisTaskQueue", tasks.RedisTaskQueue.__init__),
        ("tasks.md", "## Worker", tasks.Worker.__init__),
        ("queue.md", "## Constructor", penstock.RedisMessageQueue.__init__),
        ("queue.md", "## RedisGateway", penstock.RedisGateway.__init__),
        ("queue.md", "## GracefulInterruptHandler", penstock.GracefulInterruptHandler.__init__),
        ("queue.md", "## import_queue", penstock.import_queue),
    ],
)
def test_parameters_and_defaults_are_those_of_the_code(page: str, heading: str, function: Callable[..., Any]) -> None:
    names = table_column(REFERENCE / page, heading)
    defaults = dict(zip(names, table_column(REFERENCE / page, heading, column=1), strict=True))
    defaults.pop("**tls_options", None)
    expected = parameters(function)
    assert list(defaults) == list(expected)
    for name, default in expected.items():
        written = defaults[name]
        assert (written in ("", "required")) == (default is REQUIRED), name
        if default is not REQUIRED:
            assert written == STANDS_FOR[name] if default is UNSET else eval(written) == default, name


def test_parameters_and_defaults_of_a_balancer_are_those_of_the_code() -> None:
    page, heading = REFERENCE / "balancer.md", "## Constructor"
    written = dict(zip(table_column(page, heading), table_column(page, heading, column=1), strict=True))
    settings = {
        name: default if default is None or isinstance(default, int | float) else None  # None = the usual object
        for name, default in parameters(BalancerConfig).items()
    }
    expected = {**parameters(penstock.StreamBalancer.__init__), **settings}
    assert list(written) == list(expected)
    for name, default in expected.items():
        assert written[name] == "required" if default is REQUIRED else eval(written[name]) == default, name


def test_every_testing_tool_is_described() -> None:
    page = REFERENCE / "testing.md"
    tools = {re.split(r"\W", row)[0] for row in table_column(page, "# Testing tools")}
    assert tools == set(testing.__all__)
    written = " ".join(table_column(page, "## FaultProxy"))
    switches = {name for name in vars(testing.FaultProxy) if not name.startswith("_")}
    assert {word for word in re.findall(r"\w+", written) if word in switches} == switches


def test_every_error_is_described_and_stands_in_the_tree() -> None:
    known = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert set(table_column(REFERENCE / "errors.md", "## What each means")) == known
    tree = re.findall(r"[├└]── (\w+)", (REFERENCE / "errors.md").read_text())
    assert {*tree, "PenstockError"} == known


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    parents = [errors.PenstockError.__name__]
    for indent, name in re.findall(r"^([│ ├└─]*)── (\w+)", (REFERENCE / "errors.md").read_text(), re.MULTILINE):
        level = (len(indent) + 3) // 4
        parents[level:] = [name]
        assert parents[level - 1] in [base.__name__ for base in getattr(errors, name).__bases__]


def test_every_event_that_is_sent_is_described() -> None:
    page = REFERENCE / "events.md"
    described = {*table_column(page, "## Consumers"), *table_column(page, "## Producers")}
    folders = [ROOT / "src" / "penstock" / folder for folder in ("streams", "delivery")]
    source = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    sent = {EventName[name].value for name in re.findall(r"EventName\.([A-Z_]+)", source)}
    assert described == sent


@pytest.mark.parametrize("part", ["queue", "task", "balancer"])
def test_every_event_of_a_part_is_described(part: str) -> None:
    described = table_column(REFERENCE / "events.md", f"## {part.title()}s")
    package = ROOT / "src" / "penstock"
    files = [*(package / ("tasks" if part == "task" else part)).glob("*.py")]
    if part != "task":  # whose dead letters are written by the scripts that settle them
        files.append(package / "delivery" / "dead_letters.py")
    if part == "queue":
        files.append(package / "delivery" / "group.py")  # creates a lost group again
    source = "".join(path.read_text() for path in files)
    sent = {EventName[name].value for name in re.findall(r"EventName\.([A-Z_]+)", source)}
    assert set(described) == sent


def test_every_script_is_described() -> None:
    page = REFERENCE / "lua-scripts.md"
    folder = ROOT / "src" / "penstock" / "redis" / "lua"
    files = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.lua")}
    assert set(table_column(page, "# Lua scripts")) == set(names())
    assert set(table_column(page, "## Parts")) == files - set(names())


def test_every_reason_of_a_dead_letter_is_described() -> None:
    assert set(table_column(REFERENCE / "dead-letters.md", "## Reasons")) == {reason.value for reason in Reason}


def test_every_key_is_described() -> None:
    keys = StreamKeys.of("orders")
    spelled = {
        keys.stream,
        keys.default_dead_letters(),
        keys.producer("<id>"),
        keys.dedup("<dedup key>"),
        keys.attempts("<group>"),
        keys.retries("<group>"),
        keys.position("<group>"),
        keys.worker("<group>", "<name>"),
        keys.chore("upkeep", "<group>"),
        keys.operation("<token>"),
        keys.spark("<query>"),
        keys.spark_dead_lettered("<batch>"),
        keys.spark_begun("<batch>"),
    }
    assert set(table_column(REFERENCE / "redis-keys-and-entry-format.md", "## Keys")) == spelled
    makers = [name for name in vars(StreamKeys) if not name.startswith("_") and name not in ("stream", "of")]
    assert len(makers) == len(spelled) - 1, "a key that this test does not know was added"


def test_every_key_of_a_balanced_service_is_described() -> None:
    keys = BalancerKeys.of("billing")
    spelled = {
        keys.stream,
        keys.lock("<data stream>", "<entry id>"),
        keys.owners,
        keys.peers,
        keys.token,
        keys.request("<id>"),
        keys.shards,
        keys.dead_letters,
        keys.position("<data stream>"),
        keys.dead_letters_of("<data stream>", is_cluster=False),
    }
    assert set(table_column(REFERENCE / "balancer.md", "## Redis keys of a service")) == spelled


@pytest.mark.parametrize(
    ("page", "value"),
    [
        ("consumer.md", model.StreamMessage),
        ("consumer.md", model.ConsumerMetrics),
        ("consumer.md", model.PassReport),
        ("producer.md", model.ProducerMetrics),
        ("group.md", model.StreamStats),
        ("group.md", model.PendingEntry),
        ("group.md", model.ConsumerInfo),
        ("dead-letters.md", model.DeadLetter),
        ("queue.md", penstock.ClaimedMessage),
        ("queue.md", penstock.QueueStats),
        ("queue.md", penstock.ImportReport),
    ],
)
def test_every_field_of_a_value_is_named(page: str, value: type) -> None:
    fields = msgspec.structs.fields(value) if issubclass(value, msgspec.Struct) else dataclasses.fields(value)
    text = prose(REFERENCE / page)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert {field.name for field in fields} <= named


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("client.md", penstock.StreamClient),
        ("producer.md", penstock.StreamProducer),
        ("consumer.md", penstock.StreamConsumer),
        ("group.md", penstock.ConsumerGroup),
        ("dead-letters.md", penstock.DeadLetters),
        ("balancer.md", penstock.StreamBalancer),
        ("balancer.md", penstock.TopicProducer),
        ("queue.md", penstock.RedisMessageQueue),
        ("queue.md", penstock.AbstractRedisGateway),
        ("queue.md", Processing),
    ],
)
def test_every_method_is_named(page: str, kind: type) -> None:
    internal = INTERNAL if kind is penstock.StreamClient else set()
    methods = {name for name in vars(kind) if not name.startswith("_")} - internal
    text = (REFERENCE / page).read_text()
    assert {name for name in methods if not re.search(rf"`(?:\w+\.)?(?:await )?{name}\b", text)} == set()


@pytest.mark.parametrize("kind", [penstock.StreamClient, penstock.sync.StreamClient])
def test_help_tells_which_methods_of_a_client_are_for_programs(kind: type) -> None:
    told = set(re.findall(r"`(\w+)", kind.__doc__ or ""))
    assert told == {name for name in vars(kind) if not name.startswith("_")} - INTERNAL
