"""`penstock doctor`: its exit codes, and commands that can be pasted as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
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
from tests.helpers.commands import TREE, run

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


_NAMES = {
    RoleName.TASKS: ["--queue", "jobs"],
    RoleName.BALANCER: ["--service", "svc", "--stream", "session-*"],
    RoleName.READONLY: ["--stream", "orders:*", "--queue", "jobs", "--service", "svc", "--prefix", "shop"],
}
Rows = Callable[..., list[Any]]


@pytest.fixture
def as_user(raw: redis.Redis, penstock: Command) -> Iterator[Callable[..., list[str]]]:
    """Makes a user with the rights that `penstock acl` prints and some more; returns the words that name its keys."""

    def make(role: RoleName, *more: str) -> list[str]:
        names = ["--role", role.value, *_NAMES.get(role, ["--stream", "orders"])]
        line = penstock("acl", *names, "--user", "shop").stdout
        raw.execute_command(*shlex.split(line), ">secret", *more)
        return names

    yield make
    raw.execute_command("ACL", "DELUSER", "shop")


def _of_shop(rows: list[Any]) -> list[tuple[str, str, str]]:
    return [(row["severity"], row["check"], row["what"]) for row in rows if row["where"] == "user shop"]


@pytest.mark.parametrize("role", RoleName)
def test_a_user_has_the_rights_of_its_role_and_not_far_more(
    role: RoleName, as_user: Callable[..., list[str]], as_rows: Rows
) -> None:
    words = ["doctor", *as_user(role), "--user", "shop"]
    assert _of_shop(as_rows(*words)) == []
    as_user(role, "+@all", "resetkeys", "~*")
    [(severity, check, what)] = _of_shop(as_rows(*words))
    assert (severity, check) == ("warning", "rights")
    assert what.startswith(f"may do far more than the role {role} needs: ACL SETUSER, CONFIG SET, FLUSHALL")
    assert what.endswith("all keys")


def test_a_user_that_lacks_rights_of_its_role_is_an_error(as_user: Callable[..., list[str]], penstock: Command) -> None:
    names = as_user(RoleName.BALANCER, "-xack", "resetkeys", "~svc-input", "resetchannels")
    shown = penstock("doctor", *names, "--user", "shop", "--json", code=3)
    [(severity, check, what)] = _of_shop([json.loads(line) for line in shown.stdout.splitlines()])
    assert (severity, check) == ("error", "rights")
    assert what.startswith("may not use what the role balancer needs: commands XACK; keys ")
    assert "session-*" in what
    assert "channels __keyevent@0__:expired" in what
    assert "svc-input," not in what


def test_a_reader_may_examine_its_own_rights(as_user: Callable[..., list[str]], redis_url: str) -> None:
    names = as_user(RoleName.READONLY, "+acl|dryrun", "+command|info", "-hlen")
    result = run("doctor", *names, "--json", "--url", redis_url.replace("unix://", "unix://shop:secret@"))
    assert result.exit_code == 3, result.output
    told = _of_shop([json.loads(line) for line in result.stdout.splitlines()])
    assert told[0] == ("error", "rights", "may not use what the role readonly needs: commands HLEN")


def test_a_worker_may_examine_its_own_rights_and_nothing_else(
    as_user: Callable[..., list[str]], redis_url: str
) -> None:
    names = as_user(RoleName.WORKER, "+acl|dryrun", "+command|info", "-xack")
    own = redis_url.replace("unix://", "unix://shop:secret@")
    result = run("doctor", *names, "--json", "--url", own)
    assert result.exit_code == 3, result.output
    told = _of_shop([json.loads(line) for line in result.stdout.splitlines()])
    assert told == [
        ("error", "rights", "may not use what the role worker needs: commands XACK"),
        ("info", "not-examined", "not examined: the servers, and the streams and groups on them"),
    ]
    assert run("doctor", "--url", own).exit_code == 1


def test_rights_that_cannot_be_examined_are_no_silence(
    as_user: Callable[..., list[str]], penstock: Command, redis_url: str
) -> None:
    names = as_user(RoleName.OPERATOR)
    own = redis_url.replace("unix://", "unix://shop:secret@")
    result = run("doctor", *names, "--json", "--url", own)
    told = _of_shop([json.loads(line) for line in result.stdout.splitlines()])
    assert ("info", "not-examined", "not examined: whether it has the rights of the role operator") in told
    assert penstock("doctor", *names, "--user", "nobody", code=3).stderr.startswith(
        "penstock: the server has no user 'nobody'"
    )
    assert "--stream NAME" in penstock("doctor", "--role", "worker", code=2).stderr
    assert "need --role" in penstock("doctor", "--stream", "orders", code=2).stderr
