"""The doctor finds what is dangerous, and nothing where all is well."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from penstock.model import Lag
from penstock.ops import findings
from penstock.ops import server_findings as of_servers
from penstock.ops.model import (
    MAX_CONSUMERS,
    BalancedStream,
    Consumer,
    ConsumerState,
    DeadLetterStreamInfo,
    Finding,
    GroupInfo,
    GroupKind,
    Pin,
    RetentionInfo,
    ServerInfo,
    ServiceInfo,
    Severity,
    StreamInfo,
    StreamKind,
)
from penstock.ops.model.health import PAGES
from penstock.ops.rights import Place, RoleName, missing_commands, rights_of
from tests.docs.pages import ROOT

HEALTHY = ServerInfo(
    address="localhost:6379",
    product="Valkey",
    version="9.1.0",
    role="master",
    uptime_s=100,
    used_memory=1,
    max_memory=100,
    peak_memory=1,
    eviction_policy="noeviction",
    is_append_only=True,
    fsync="everysec",
    snapshots=True,
    unsaved_changes=0,
    last_save_ok=True,
    replicas=1,
    min_replicas=1,
    clients=1,
    blocked_clients=0,
    ops_per_s=0,
    keys=1,
    keyspace_events="Ex",
    is_cluster=False,
    clock_skew_s=0.01,
)
SERVICE = ServiceInfo("svc", 1, 0)
_SOURCE = inspect.getsource(findings) + inspect.getsource(of_servers)
LATE = Lag(7, 1_000.0)


def group(lag: Lag = LATE, **changes: Any) -> GroupInfo:
    return GroupInfo("orders", "shipping", GroupKind.CONSUMERS, 1, 0, "1-0", lag, **changes)


def stream(name: str = "orders", kind: StreamKind = StreamKind.STREAM, *groups: GroupInfo) -> StreamInfo:
    return StreamInfo(name, kind, "", 7, "1-0", "7-0", "7-0", 7, groups, len(groups))


def consumer(state: ConsumerState, pending: int = 0, idle_ms: int = 1_000_000, name: str = "one") -> Consumer:
    return Consumer("orders", "shipping", name, pending, idle_ms, state)


def checks(findings: list[Finding]) -> list[tuple[str, Severity]]:
    return [(finding.check, finding.severity) for finding in findings]


def test_nothing_is_wrong_with_a_healthy_server() -> None:
    assert of_servers.server_findings(HEALTHY) == of_servers.known_vulnerabilities(HEALTHY) == []
    assert of_servers.keyspace_events(HEALTHY, [SERVICE]) == []


@pytest.mark.parametrize(
    ("changes", "check", "severity"),
    [
        ({"eviction_policy": "allkeys-lru"}, "eviction-policy", Severity.ERROR),
        ({"eviction_policy": "volatile-ttl"}, "eviction-policy", Severity.WARNING),
        ({"used_memory": 95}, "memory", Severity.ERROR),
        ({"last_save_ok": False}, "persistence", Severity.ERROR),
        ({"is_append_only": False}, "persistence", Severity.WARNING),
        ({"is_append_only": False, "snapshots": False}, "persistence", Severity.WARNING),
        ({"fsync": "no"}, "persistence", Severity.INFO),
        ({"replicas": 0}, "replicas", Severity.INFO),
        ({"min_replicas": 0}, "replicas", Severity.WARNING),
        ({"clock_skew_s": 3.0}, "clock-skew", Severity.WARNING),
        ({"clock_skew_s": -60.0}, "clock-skew", Severity.ERROR),
    ],
)
def test_what_is_dangerous_in_a_server_is_found(changes: dict[str, Any], check: str, severity: Severity) -> None:
    [finding] = of_servers.server_findings(replace(HEALTHY, **changes))
    assert (finding.check, finding.severity) == (check, severity)
    assert finding.fix
    assert finding.link in PAGES


@pytest.mark.parametrize(
    ("product", "version", "is_found"),
    [
        ("Redis", "6.2.14", True),
        ("Redis", "6.2.20", False),
        ("Redis", "7.0.15", True),
        ("Redis", "8.2.2", False),
        ("Redis", "8.6.3", False),
        ("Valkey", "8.1.3", True),
        ("Valkey", "9.1.2", False),
        ("Redis", "unknown", False),
    ],
)
def test_servers_with_a_known_hole_are_found(product: str, version: str, is_found: bool) -> None:
    assert bool(of_servers.known_vulnerabilities(replace(HEALTHY, product=product, version=version))) == is_found


@pytest.mark.parametrize(
    ("changes", "services", "what"),
    [
        ({}, [SERVICE], None),
        ({"version": "unknown"}, [], "version, memory, persistence and replicas"),
        ({"fsync": None, "snapshots": None, "keyspace_events": None}, [], "appendfsync"),
        ({"fsync": None, "snapshots": None, "is_append_only": False}, [], "save"),
        ({"fsync": None, "keyspace_events": None}, [SERVICE], "appendfsync, notify-keyspace-events"),
        ({"min_replicas": None}, [SERVICE], None),
    ],
)
def test_what_a_server_does_not_say_is_found_where_the_verdict_depends_on_it(
    changes: dict[str, Any], services: list[ServiceInfo], what: str | None
) -> None:
    found = of_servers.unread_settings(replace(HEALTHY, **changes), services)
    assert [finding.what for finding in found] == ([] if what is None else [f"not examined: {what}"])
    assert all((finding.check, finding.severity) == ("not-examined", Severity.INFO) for finding in found)


def test_snapshots_that_nobody_knows_of_are_not_taken_for_none() -> None:
    [finding] = of_servers.server_findings(replace(HEALTHY, is_append_only=False, snapshots=None))
    assert "at best, snapshots are taken" in finding.what


def test_only_a_default_user_that_can_log_in_needs_a_password() -> None:
    assert of_servers.open_server([b"off", b"nopass"]) == of_servers.open_server([b"on"]) == []


def test_roles_follow_from_what_is_on_the_server() -> None:
    reader = replace(group(), kind=GroupKind.ARCHIVE)
    assert of_servers.roles_in_use([stream("orders", StreamKind.STREAM, group())], []) == [RoleName.WORKER]
    assert of_servers.roles_in_use([stream("orders", StreamKind.STREAM, reader)], [SERVICE]) == [
        RoleName.WORKER, RoleName.BALANCER, RoleName.SPARK,
    ]  # fmt: skip
    assert of_servers.roles_in_use([stream("jobs.tasks", StreamKind.TASKS)], []) == [RoleName.TASKS]


@pytest.mark.parametrize(("events", "is_found"), [("", True), ("E", True), ("AKE", False), ("Kx", False)])
def test_a_balancer_without_notices_is_found(events: str, is_found: bool) -> None:
    assert bool(of_servers.keyspace_events(replace(HEALTHY, keyspace_events=events), [SERVICE])) == is_found
    assert of_servers.keyspace_events(replace(HEALTHY, keyspace_events=events), []) == []


@pytest.mark.parametrize(
    ("kind", "is_found"), [(StreamKind.STREAM, True), (StreamKind.QUEUE, True), (StreamKind.SERVICE, False)]
)
def test_a_stream_whose_dead_letters_are_in_another_slot_is_found(kind: StreamKind, is_found: bool) -> None:
    found = findings.hash_tags([stream("orders", kind, group()), stream("{a}", kind, group())])
    assert [finding.where for finding in found] == (["stream orders"] if is_found else [])


def test_locks_that_run_out_before_a_failover_are_found() -> None:
    owned = [BalancedStream("svc", "a", "1-0", "one", 3_000, 1, 0), BalancedStream("svc", "b", "2-0", "", None, 1, 0)]
    assert checks(findings.short_locks("svc", owned, 15_000)) == [("leases", Severity.WARNING)]
    assert findings.short_locks("svc", owned, 2_000) == findings.short_locks("svc", [], 2_000) == []


@pytest.mark.parametrize(
    ("pin", "is_found"),
    [
        (Pin("g", GroupKind.CONSUMERS, "1-0", 0, 5, 1_000.0, is_lowest=True, is_dead=True), True),
        (Pin("g", GroupKind.POSITION, "1-0", 0, 5, 100_000.0, is_lowest=True), True),
        (Pin("g", GroupKind.CONSUMERS, "1-0", 0, 5, 1_000.0, is_lowest=False, is_dead=True), False),
        (Pin("g", GroupKind.CONSUMERS, "1-0", 0, 5, 1_000.0, is_lowest=True), False),
    ],
)
def test_a_group_that_pins_a_stream_is_found(pin: Pin, is_found: bool) -> None:
    info = RetentionInfo("orders", StreamKind.STREAM, 50_000, 1, "1-0", 0, 0, True, (pin,))
    assert bool(findings.pinned(info)) == is_found


def test_dead_consumers_that_hold_messages_are_found() -> None:
    found = findings.consumer_findings([], [consumer(ConsumerState.DEAD, pending=3), consumer(ConsumerState.IDLE)])
    assert checks(found) == [("dead-consumers", Severity.ERROR)]
    assert "3 messages of 1 dead consumer: no consumer recovers them" in found[0].what
    assert findings.consumer_findings([], [consumer(ConsumerState.DEAD)]) == []
    many = [consumer(ConsumerState.DEAD, name=f"pod-{n}") for n in range(101)]
    assert checks(findings.consumer_findings([], many)) == [("dead-consumers", Severity.WARNING)]


def test_a_dead_consumer_of_messages_that_are_not_due_is_no_finding() -> None:
    dead = [consumer(ConsumerState.DEAD, pending=3)]
    waiting = group(retries_waiting=3, oldest_pending_idle_ms=0)
    assert findings.consumer_findings([stream("orders", StreamKind.STREAM, waiting)], dead) == []
    for left_alone in (replace(waiting, retries_waiting=2), replace(waiting, oldest_pending_idle_ms=400_000)):
        found = findings.consumer_findings([stream("orders", StreamKind.STREAM, left_alone)], dead)
        assert checks(found) == [("dead-consumers", Severity.ERROR)]


def test_what_pins_a_stream_is_left_out_where_a_graver_finding_is_about_the_same_group() -> None:
    def finding(check: str, severity: Severity) -> Finding:
        return Finding(check, severity, "stream orders, group shipping", "")

    pinning, grave = finding("pinned", Severity.WARNING), finding("no-consumer", Severity.ERROR)
    assert findings.without_repeats([pinning, grave]) == [grave]
    for other in (replace(grave, severity=Severity.INFO), replace(grave, where="stream orders, group billing")):
        assert findings.without_repeats([pinning, other]) == [pinning, other]


def test_messages_that_nobody_reads_are_found() -> None:
    late = stream("orders", StreamKind.STREAM, group())
    assert checks(findings.without_live_consumers([late], [])) == [("no-consumer", Severity.ERROR)]
    assert checks(findings.without_live_consumers([late], [consumer(ConsumerState.DEAD)])) == [
        ("no-consumer", Severity.ERROR)
    ]
    assert findings.without_live_consumers([late], [consumer(ConsumerState.IDLE)]) == []
    assert findings.without_live_consumers([stream("orders", StreamKind.STREAM, group(Lag(7, 10.0)))], []) == []


def test_nobody_knows_whether_one_of_too_many_consumers_is_alive() -> None:
    crowded = stream("orders", StreamKind.STREAM, replace(group(), consumers=MAX_CONSUMERS + 1))
    assert findings.without_live_consumers([crowded], []) == []
    assert checks(findings.consumer_findings([crowded], [])) == [("dead-consumers", Severity.WARNING)]


def test_a_position_that_does_not_move_is_mentioned_unless_only_consumers_can_move_it() -> None:
    position = replace(group(), kind=GroupKind.POSITION)
    [finding] = findings.without_live_consumers([stream("orders", StreamKind.STREAM, position)], [])
    assert (finding.check, finding.severity) == ("no-consumer", Severity.INFO)
    assert "penstock group delete orders" in finding.fix
    [finding] = findings.without_live_consumers([stream("jobs.tasks", StreamKind.TASKS, position)], [])
    assert finding.severity is Severity.ERROR
    assert "group delete" not in finding.fix


def test_tasks_of_a_kind_that_no_worker_knows_are_found() -> None:
    lane = stream("jobs.tasks.normal:kind=render", StreamKind.TASKS, group())
    [finding] = findings.without_live_consumers([lane], [])
    assert finding.check == "unknown-kind"
    assert "7 tasks of kind 'render'" in finding.what


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("orders", StreamKind.STREAM, "1 message waits, "),
        ("jobs.tasks.normal:kind=render", StreamKind.TASKS, "1 task of kind 'render' waits, "),
        ("jobs.tasks.low:requires=gpu", StreamKind.TASKS, "1 task that requires gpu waits, "),
    ],
)
def test_a_single_message_is_told_in_the_singular(name: str, kind: StreamKind, what: str) -> None:
    [finding] = findings.without_live_consumers([stream(name, kind, group(Lag(1, 1_000.0)))], [])
    assert finding.what.startswith(what)


def test_tasks_that_require_what_no_worker_provides_are_found() -> None:
    lane = stream("jobs.tasks.low:requires=disk,gpu", StreamKind.TASKS, group())
    [finding] = findings.without_live_consumers([lane], [])
    assert (finding.check, finding.fix) == (
        "no-consumer",
        "start a worker with --capabilities disk,gpu, or cancel the tasks",
    )
    assert "7 tasks that require disk,gpu" in finding.what


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (GroupKind.CONSUMERS, "start its consumers, or, if it is not needed, `penstock group delete orders g`"),
        (GroupKind.POSITION, "run its archive or Spark query; only if it is retired, `penstock group delete orders g`"),
        (GroupKind.ARCHIVE, "run its archive or Spark query; only if it is retired, `penstock group delete orders g`"),
    ],
)
def test_the_position_of_a_late_reader_is_deleted_only_with_its_reader(kind: GroupKind, fix: str) -> None:
    pin = Pin("g", kind, "1-0", 0, 5, 100_000.0, is_lowest=True)
    [finding] = findings.pinned(RetentionInfo("orders", StreamKind.STREAM, 50_000, 1, "1-0", 0, 0, True, (pin,)))
    assert finding.fix == fix


@pytest.mark.parametrize("kind", [StreamKind.QUEUE, StreamKind.TASKS, StreamKind.SERVICE])
def test_nobody_is_told_to_delete_the_group_of_a_queue(kind: StreamKind) -> None:
    pin = Pin("g", GroupKind.CONSUMERS, "1-0", 0, 5, 1_000.0, is_lowest=True, is_dead=True)
    [finding] = findings.pinned(RetentionInfo("jobs.tasks", kind, 50_000, 1, "1-0", 0, 0, True, (pin,)))
    assert finding.fix == "start its consumers"


def test_every_check_says_what_to_do_and_where_to_read_about_it() -> None:
    pin = Pin("g", GroupKind.CONSUMERS, "1-0", 0, 5, 1_000.0, is_lowest=True, is_dead=True)
    bad = replace(
        HEALTHY, product="Redis", version="7.0.15", eviction_policy="allkeys-lru", used_memory=95, replicas=0,
        is_append_only=False, keyspace_events="", clock_skew_s=60.0,
    )  # fmt: skip
    late = stream("orders", StreamKind.STREAM, group())
    lane = stream("jobs.tasks.normal:kind=render", StreamKind.TASKS, group())
    old = DeadLetterStreamInfo("orders_dlq", StreamKind.STREAM, "orders", 200_000, "1000-0", "2000-0")
    found = [
        *of_servers.server_findings(bad), *of_servers.known_vulnerabilities(bad), *of_servers.keyspace_events(bad, [SERVICE]),
        *of_servers.open_server([b"on", b"nopass"]), *of_servers.unread_settings(replace(HEALTHY, fsync=None), []),
         *of_servers.lacking("ada", RoleName.WORKER, ["XADD"]),
        *findings.hash_tags([late]), *findings.many_groups([replace(late, groups_count=70)]),
        *findings.foreign_ids([replace(late, last_generated_id=f"{2**64 - 1}-{2**64 - 1}")], 3_000),
        *findings.short_locks("svc", [BalancedStream("svc", "a", "1-0", "one", 3_000, 1, 0)], 15_000),
        *findings.pinned(RetentionInfo("orders", StreamKind.STREAM, 50_000, 1, "1-0", 0, 0, True, (pin,))),
        *findings.consumer_findings([late], [consumer(ConsumerState.DEAD, pending=3)]),
        *findings.without_live_consumers([late, lane], []), *findings.unbounded_dead_letters([old], 3_000),
    ]  # fmt: skip
    known = set(re.findall(r'Finding\(\s*"([a-z-]+)"', _SOURCE)) | {"unknown-kind", "no-consumer"}
    assert {finding.check for finding in found} == known
    assert [finding for finding in found if not finding.fix or finding.link not in PAGES] == []


def test_dead_letters_that_nothing_limits_are_found() -> None:
    few = DeadLetterStreamInfo("orders_dlq", StreamKind.STREAM, "orders", 5, "1000-0", "2000-0")
    assert findings.unbounded_dead_letters([few], 3_000) == []
    assert checks(findings.unbounded_dead_letters([few], 40 * 86_400_000)) == [("dead-letters", Severity.WARNING)]
    assert checks(findings.unbounded_dead_letters([replace(few, count=200_000)], 3_000)) == [
        ("dead-letters", Severity.WARNING)
    ]


@pytest.mark.parametrize(
    ("rules", "lacks"),
    [
        ("+@all", False),
        ("-@all +xadd", True),
        ("+@all -xreadgroup", True),
        ("-@all +@stream +@read", False),  # which says nothing certain
    ],
)
def test_what_a_user_lacks_is_read_from_its_rules(rules: str, lacks: bool) -> None:
    rights = rights_of(RoleName.WORKER, Place(streams=("orders",)))
    assert bool(missing_commands(rights, rules)) == lacks


def test_a_user_with_all_rights_of_a_role_lacks_nothing() -> None:
    rights = rights_of(RoleName.WORKER, Place(streams=("orders",)))
    rules = " ".join(
        word for word in rights.rules({name.partition(" ")[0] for name in rights.commands}) if "~" not in word
    )
    assert missing_commands(rights, rules) == []


def test_a_stream_with_more_groups_than_are_looked_at_is_found() -> None:
    [finding] = findings.many_groups([replace(stream("orders", StreamKind.STREAM, group()), groups_count=70)])
    assert (finding.check, finding.what) == ("many-groups", "1 of 70 groups were examined")
    assert findings.many_groups([stream("orders", StreamKind.STREAM, group())]) == []


@pytest.mark.parametrize(
    ("last_id", "severity", "what"),
    [
        ("86399999-5", None, ""),
        ("", None, ""),
        ("864000000-0", Severity.WARNING, "its last id is 10 days ahead"),
        (f"{2**64 - 1}-{2**64 - 1}", Severity.ERROR, "takes no more entries"),
        (f"{2**64 - 1}-{2**64 - 2}", Severity.WARNING, "its last id is"),
    ],
)
def test_ids_from_the_future_are_found(last_id: str, severity: Severity | None, what: str) -> None:
    late = replace(stream("orders", StreamKind.STREAM, group()), last_generated_id=last_id)
    found = findings.foreign_ids([late], 0)
    assert checks(found) == ([] if severity is None else [("foreign-ids", severity)])
    assert all(finding.what.startswith(what) for finding in found)


def test_findings_name_pages_by_their_titles() -> None:
    titles = {page: (ROOT / "docs" / page).read_text().split("\n", 1)[0] for page in PAGES}
    assert titles == {page: f"# {title}" for page, title in PAGES.items()}
