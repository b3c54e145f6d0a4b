"""The doctor examines a real server."""

from __future__ import annotations

import pytest
import redis

from penstock import StreamClient
from penstock.ops import Inspector, Severity
from penstock.ops.dry_run import sample
from penstock.ops.rights import Place, RoleName, rights_of
from penstock.tasks import RedisTaskQueue, Task
from tests.docs.pages import ROOT
from tests.ops.stage import STREAM, add, give_up, read_as

pytestmark = pytest.mark.every_server


async def test_findings_name_the_fix_and_a_page_that_exists(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, [1])
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    raw.xadd("late", {"data": "x"}, id="1-0")
    read_as(raw, "someone", 1, "late", "first")
    raw.xgroup_create("late", "gone", "0")
    for lane in ("kind=paint", "requires=gpu"):  # to which the workers that cannot do them have moved tasks
        raw.xadd(f"jobs.tasks.normal:{lane}", {"data": "x"}, id="1-0")
        raw.xgroup_create(f"jobs.tasks.normal:{lane}", "jobs", "0")
    found = await inspector.doctor()
    checks = {finding.check for finding in found}
    assert {"persistence", "keyspace-events", "no-consumer", "unknown-kind"} <= checks
    assert "pinned" not in checks, "of a group without consumers one finding is enough"
    assert "1 task that requires gpu waits, and no worker provides gpu" in {finding.what for finding in found}
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, key=[Severity.ERROR, Severity.WARNING, Severity.INFO].index)
    for finding in found:
        assert finding.fix
        assert (ROOT / "docs" / finding.link).is_file(), finding


async def test_a_group_from_now_on_that_nobody_reads_through_is_found(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd("late", {"data": "x"}, id="1-0")
    raw.xgroup_create("late", "forgotten", "$")
    raw.xadd("late", {"data": "x"}, id="2-0")
    [finding] = [each for each in await inspector.doctor() if each.check == "no-consumer"]
    assert (finding.where, finding.severity) == ("stream late, group forgotten", Severity.INFO)
    assert "penstock group delete late forgotten" in finding.fix


async def test_an_eviction_policy_that_loses_streams_is_an_error(inspector: Inspector, raw: redis.Redis) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = await inspector.doctor()
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    [finding] = [each for each in found if each.check == "eviction-policy"]
    assert finding.severity is Severity.ERROR


@pytest.mark.usefixtures("default_server")
async def test_the_rights_of_a_user_are_examined(redis_url: str, inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 1)
    rules = ["on", ">secret", "~*", "+@all", "-xreadgroup"]
    raw.execute_command("ACL", "SETUSER", "half", *rules)
    try:
        async with Inspector.from_url(redis_url, username="half", password="secret") as half:
            [default, finding] = [each for each in await half.doctor() if each.check == "rights"]
    finally:
        raw.execute_command("ACL", "DELUSER", "half")
    assert (default.where, finding.where) == ("user default", "user half")
    assert "XREADGROUP" in finding.what
    assert STREAM in await inspector.streams.names()


@pytest.mark.servers("6.2", "7.0", "valkey")
async def test_what_a_user_may_not_examine_is_no_silence(
    redis_url: str, inspector: Inspector, raw: redis.Redis
) -> None:
    add(raw, 1)
    add(raw, 1, "secret-orders")
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    known = {row["name"] for row in raw.command().values()}
    rules = rights_of(RoleName.READONLY, Place(streams=(STREAM,), services=("svc",))).rules(known)

    async def found(*more: str) -> dict[str, str]:
        raw.execute_command("ACL", "SETUSER", "reader", ">secret", *rules, *more)
        async with Inspector.from_url(redis_url, username="reader", password="secret") as reader:
            findings = [each for each in await reader.doctor() if each.check in {"not-examined", "rights"}]
        assert {each.severity for each in findings if each.check == "not-examined"} <= {Severity.INFO}
        return {each.where: f"{each.what}; {each.fix}" for each in findings}

    try:
        few = await found()
        all_read = await found("+config|get", "+acl|whoami", "+acl|getuser", "~*")
        no_info = await found("-info")
    finally:
        raw.execute_command("ACL", "DELUSER", "reader")
    assert "not examined: its rights, and whether the user default has a password" in few.pop("user reader")
    assert "not examined: 1 of 3 streams, such as secret-orders" in few.pop("streams")
    [of_server] = few.values()
    assert "notify-keyspace-events" in of_server
    assert "CONFIG GET" in of_server
    assert list(all_read) == ["user default"], "who looks needs no rights to work"
    assert "has no password" in all_read["user default"]
    assert any("not examined: version, memory" in text for text in no_info.values())


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("orders", "orders"), ("orders:*", "orders:penstock-doctor"), ("a?c", "axc"), ("s[0-9]", "s0"),
        (r"a\*", "a*"), ("s[^a]", "spenstock-doctor"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("default_server")
def test_a_pattern_stands_for_a_key_that_it_matches(pattern: str, key: str) -> None:
    assert sample(pattern) == key


@pytest.mark.servers("6.2")
async def test_a_server_that_cannot_tell_what_a_user_may_do_is_said(inspector: Inspector) -> None:
    found = await inspector.doctor([RoleName.WORKER], Place(streams=(STREAM,)))
    [finding] = [each for each in found if each.check == "not-examined"]
    assert finding.where == "user default"
    assert "since Redis 7.0" in finding.what


async def test_whether_replicas_are_needed_is_known_without_a_look_at_the_settings(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ops.servers._setting", lambda _: None)
    assert [server.min_replicas for server in await inspector.servers.all()] == [0]
    raw.config_set("min-replicas-to-write", 2)
    try:
        assert [server.min_replicas for server in await inspector.servers.all()] == [None]
        monkeypatch.undo()
        assert [server.min_replicas for server in await inspector.servers.all()] == [2]
    finally:
        raw.config_set("min-replicas-to-write", 0)
