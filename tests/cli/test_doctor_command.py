"""`penstock doctor`: its exit codes, and commands that can be pasted as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock.errors import NotFound
from penstock.ops import findings, server_findings
from penstock.ops.model import DeadLetterStreamInfo, GroupKind, Pin, RetentionInfo, StreamKind
from penstock.ops.rights import RoleName
from penstock.shown import command_line
from penstock.sync.ops import Inspector
from tests.cli.conftest import Command
from tests.helpers.commands import TREE

pytestmark = pytest.mark.usefixtures("default_server")
NAMES = ("orders", "my orders; reboot", "$(id)", "it's", "-x", "--yes", "`id`")
_COMMAND = re.compile(r"`(penstock .+?)`(?=[ ,;.]|$)")


def parsed(line: str) -> dict[str, Any]:
    """Parses a command as a shell and the command line would, and returns its parameters; raises a usage error."""
    _, *words = shlex.split(line)
    command, context = TREE, None
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, words)  # type: ignore[attr-defined]
    return dict(command.make_context(name, list(words)).params)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_quoted_in_commands_to_paste(name: str) -> None:
    pin = Pin(name, GroupKind.CONSUMERS, "1-1", 0, 5, 1_000.0, is_lowest=True, is_dead=True)
    [pinned] = findings.pinned(RetentionInfo(name, StreamKind.STREAM, 5, 100, "1-1", 0, 0, True, (pin,)))
    [command] = _COMMAND.findall(pinned.fix)
    assert {"stream": name, "name": name}.items() <= parsed(command).items()
    [dead] = findings.unbounded_dead_letters([DeadLetterStreamInfo(name, StreamKind.STREAM, "", 10**6, "", "")], 0)
    [command] = _COMMAND.findall(dead.fix)
    assert parsed(command)["of"] == name
    assert parsed(command_line("group ls", name).strip("`"))["stream"] == name


def test_every_command_of_a_fix_exists(redis_url: str, raw: redis.Redis) -> None:
    raw.xadd("late", {"data": "x"}, id="1-0")
    raw.xgroup_create("late", "gone", "0")
    raw.config_set("maxmemory", 1)
    try:
        with Inspector.from_url(redis_url) as inspector:
            fixes = [finding.fix for finding in inspector.doctor()]
            with pytest.raises(NotFound) as missing:
                inspector.groups.info("late", "nobody")
    finally:
        raw.config_set("maxmemory", 0)
    fixes += [finding.fix for role in RoleName for finding in server_findings.lacking("someone", role, ["XADD"])]
    texts = [*fixes, str(missing.value)]
    commands = [command for text in texts for command in _COMMAND.findall(text)]
    assert {shlex.split(command)[1] for command in commands} == {"acl", "group", "retention"}
    assert sum(text.count("`penstock") for text in texts) == len(commands)
    for command in commands:
        parsed(command)


def test_an_error_has_a_code_for_probes(penstock: Command, raw: redis.Redis) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        shown = penstock("doctor", code=3).stdout
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    assert "eviction-policy" in shown
    assert '(see "Delivery guarantees" in the documentation)' in shown
    assert "docs/" not in shown, "who installed the package has no copy"


def test_a_warning_counts_if_it_is_asked_for(
    penstock: Command, as_rows: Callable[..., list[Any]], raw: redis.Redis
) -> None:
    raw.config_set("appendonly", "no")
    assert {row["severity"] for row in as_rows("doctor")} <= {"warning", "info"}
    penstock("doctor", "--strict", code=3)
