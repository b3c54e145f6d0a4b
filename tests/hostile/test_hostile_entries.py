"""Entries that anyone who may XADD can write: each good message between them is handled once, and nothing stops."""

from __future__ import annotations

import pytest
import redis

from penstock.testing.hostile import KINDS, hostile_entries
from tests.hostile.accepted import RED
from tests.hostile.readers import READERS, Run, read
from tests.hostile.tools import TOOLS

pytestmark = pytest.mark.usefixtures("default_server")
ENTRIES = 500
SEED = 20261116


def test_a_seed_gives_the_same_entries_and_every_kind() -> None:
    first, second = (list(hostile_entries(7, 200, now_ms=1)) for _ in range(2))
    assert first == second
    assert {entry.kind for entry in first} == set(KINDS)
    assert list(hostile_entries(8, 200, now_ms=1)) != first


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_take_hostile_dead_letters(tool: str, redis_url: str, raw: redis.Redis) -> None:
    kinds = [kind for kind in KINDS if kind not in RED.get(tool, {})]
    assert TOOLS[tool](redis_url, raw, SEED, ENTRIES, kinds) == []


@pytest.mark.parametrize("reader", READERS)
async def test_hostile_entries_stop_nobody(reader: str, redis_url: str, raw: redis.Redis) -> None:
    kinds = [kind for kind in KINDS if kind not in RED.get(reader, {})]
    run = Run(redis_url, raw, SEED, ENTRIES, kinds)
    assert await read(reader, run) == []
    assert len(run.history.good) > ENTRIES // 4
