"""What `--json` prints has names that do not change by accident."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
import redis

from penstock.dashboard.pages import PAGES
from penstock.sync import StreamBalancer, StreamClient
from tests.cli.test_every_command import CASES, TREE, WITHOUT_JSON, filled, names
from tests.helpers.commands import run
from tests.helpers.json_names import check, known

__all__ = ["names"]  # a fixture
pytestmark = pytest.mark.usefixtures("default_server")
WITH_JSON = [name for name in CASES if name in TREE and name not in WITHOUT_JSON]
# What has rows only where somebody works, and what prints other objects for some arguments.
MORE = {
    "pending ls": ("pending", "ls", "orders", "busy"),
    "dlq ls --causes": ("dlq", "ls", "--causes"),
    "queue stats TASK-QUEUE": ("queue", "stats", "penstock"),
}
BALANCED = {"balance ls": (), "balance ls SERVICE": ("svc",)}
# `archive run` prints what `archive status` prints; the demo is not for programs.
ELSEWHERE = {"archive run", "demo"}


def _rows(*words: str) -> Iterable[Any]:
    return map(json.loads, run(*words, "--json").stdout.splitlines())


@pytest.mark.parametrize(
    "name", [*MORE, *(name for name in WITH_JSON if CASES[name].good is not None and name not in {*MORE, *BALANCED})]
)
def test_the_names_in_json_are_those_that_are_listed(name: str, names: dict[str, str], raw: redis.Redis) -> None:
    raw.xgroup_create("orders", "busy", "0")
    raw.xreadgroup("busy", "someone", {"orders": ">"})
    check(
        name, _rows(*MORE.get(name, (*name.split(), *filled(CASES[name].good or () if name in CASES else (), names))))
    )


def test_the_names_of_balanced_services_are_those_that_are_listed(redis_url: str, names: dict[str, str]) -> None:
    with StreamClient.from_url(redis_url) as client, (balancer := StreamBalancer(client, "svc", id="owner")) as notices:
        balancer.add_stream("session-1")
        next(notices)
        for name, words in BALANCED.items():
            check(name, _rows("balance", "ls", *words))
        check("balance release", _rows("balance", "release", "svc", "session-1", "-y"))


def test_the_names_of_every_command_and_page_are_listed() -> None:
    assert known().keys() == {*WITH_JSON, *MORE, *BALANCED, *(page.json_path for page in PAGES)} - ELSEWHERE
    assert all(known().values())
