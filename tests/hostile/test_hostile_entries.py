"""Entries that anyone who may XADD can write: each good message between them is handled once, and nothing stops."""

from __future__ import annotations

import pytest
import redis

from penstock.testing.hostile import KINDS, hostile_entries
from tests.hostile.readers import READERS, Run, read

pytestmark = pytest.mark.usefixtures("default_server")
ENTRIES = 500
SEED = 20261116

_UNPACK = "the scripts that bury unpack all fields of an entry at once, and Lua cannot unpack 8,000 words"
_SEQUENCE = "trimming takes what follows a sequence number of more than 15 digits for finished"
_DIGITS = "int() takes no more than 4,300 digits"
RED: dict[str, dict[str, str]] = {
    "streams": {"fields.thousands_and_junk": _UNPACK, "ids.huge_sequence": _SEQUENCE},
    "queue": {"fields.thousands_and_junk": _UNPACK, "numbers.many_digits": _DIGITS},
    "tasks": {
        "fields.thousands_and_junk": _UNPACK,
        "ids.huge_sequence": _SEQUENCE,
        "numbers.many_digits": _DIGITS,
        "numbers.twenty_digits": "MessagePack has no integer for the attempts of the result",
        "others.task_id": "what is no task stores an error as the result of the task that it names",
        "others.payload": "of two entries with one task id the worker forgets one, which stays pending",
    },
    "balancer announcements": {"fields.thousands_and_junk": _UNPACK},
}
"""What breaks a reader today, by kind, with the reason: taken out of its run until it is mended."""


def test_a_seed_gives_the_same_entries_and_every_kind() -> None:
    first, second = (list(hostile_entries(7, 200, now_ms=1)) for _ in range(2))
    assert first == second
    assert {entry.kind for entry in first} == set(KINDS)
    assert list(hostile_entries(8, 200, now_ms=1)) != first


@pytest.mark.parametrize("reader", READERS)
async def test_hostile_entries_stop_nobody(reader: str, redis_url: str, raw: redis.Redis) -> None:
    kinds = [kind for kind in KINDS if kind not in RED.get(reader, {})]
    run = Run(redis_url, raw, SEED, ENTRIES, kinds)
    assert await read(reader, run) == []
    assert len(run.history.good) > ENTRIES // 4
