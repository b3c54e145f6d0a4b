"""Entries that anyone who may XADD can write: each good message between them is handled once, and nothing stops."""

from __future__ import annotations

import pytest
import redis

from penstock.testing.hostile import KINDS, hostile_entries
from tests.hostile.readers import READERS, Run, read
from tests.hostile.tools import TOOLS

pytestmark = pytest.mark.usefixtures("default_server")
ENTRIES = 500
SEED = 20261116

_UNPACK = "the scripts that bury unpack all fields of an entry at once, and Lua cannot unpack 8,000 words"
_SEQUENCE = "trimming takes what follows a sequence number of more than 15 digits for finished"
_SUPERSCRIPT = "isdigit() is true for what int() does not take"
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
    "dead letters of streams": {
        "fields.thousands": _UNPACK,
        "fields.thousands_and_junk": _UNPACK,
        "numbers.many_digits": _DIGITS,
        "numbers.superscript": _SUPERSCRIPT,
    },
    "dead letters of tasks": {
        "fields.thousands": _UNPACK,
        "fields.thousands_and_junk": _UNPACK,
        "numbers.many_digits": _DIGITS,
        "numbers.superscript": _SUPERSCRIPT,
    },
    "command line": {
        "numbers.many_digits": _DIGITS,
        "numbers.superscript": _SUPERSCRIPT,
        "numbers.twenty_digits": "a time of death beyond the year 9999 is no datetime",
        "texts.not_utf8": "NUL bytes reach the terminal",
        "texts.markup": "Rich takes texts of messages for markup",
        "texts.escapes": "escape sequences reach the terminal",
    },
    "spark source": {"headers.not_utf8": "msgspec raises UnicodeDecodeError, which is no DecodeError"},
}
"""What breaks a reader today, by kind, with the reason: taken out of its run until it is mended."""


def test_a_seed_gives_the_same_entries_and_every_kind() -> None:
    first, second = (list(hostile_entries(7, 200, now_ms=1)) for _ in range(2))
    assert first == second
    assert {entry.kind for entry in first} == set(KINDS)
    assert list(hostile_entries(8, 200, now_ms=1)) != first


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_take_hostile_dead_letters(tool: str, redis_url: str, raw: redis.Redis) -> None:
    kinds = [kind for kind in KINDS if kind not in RED.get(tool, {})]
    assert TOOLS[tool](redis_url, raw, SEED, 2 * len(kinds), kinds) == []


@pytest.mark.parametrize("reader", READERS)
async def test_hostile_entries_stop_nobody(reader: str, redis_url: str, raw: redis.Redis) -> None:
    kinds = [kind for kind in KINDS if kind not in RED.get(reader, {})]
    run = Run(redis_url, raw, SEED, ENTRIES, kinds)
    assert await read(reader, run) == []
    assert len(run.history.good) > ENTRIES // 4
