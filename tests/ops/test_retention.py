"""Retention tells who pins a stream, and trims by a policy what nobody needs."""

from __future__ import annotations

import time

import pytest
import redis

from penstock.errors import ConfigurationError, NotFound
from penstock.ops import GroupKind, Inspector, RetentionPolicy
from tests.helpers.ageing import Ageing
from tests.ops.stage import GROUP, STREAM, add, read_as

pytestmark = pytest.mark.every_server


def settle(raw: redis.Redis, count: int, group: str = GROUP) -> list[str]:
    """Reads and acknowledges so many entries."""
    ids = read_as(raw, "someone", count, group=group)
    raw.xack(STREAM, group, *ids)
    return ids


async def test_the_group_that_is_furthest_behind_pins_the_stream(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 100)
    settle(raw, 60)
    raw.xgroup_create(STREAM, "nightly", ids[39])
    found = await inspector.retention.report(STREAM)
    assert (found.length, found.finished, found.is_exact) == (100, 40, True)
    pins = {pin.group: (pin.kind, pin.lag, pin.is_lowest) for pin in found.pins}
    assert pins == {GROUP: (GroupKind.CONSUMERS, 40, False), "nightly": (GroupKind.POSITION, 60, True)}
    assert found.memory_bytes
    assert found.reclaimable_bytes == found.memory_bytes * 40 // 100


async def test_a_pending_message_pins_all_behind_it(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 10)
    read_as(raw, "someone", 10)
    raw.xack(STREAM, GROUP, *ids[:3], *ids[5:])
    found = await inspector.retention.report(STREAM)
    assert (found.floor_id, found.finished) == (ids[3], 3)
    assert found.pins[0].pending == 2


async def test_a_group_whose_consumers_are_gone_is_dead(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 10)
    raw.xgroup_create(STREAM, GROUP, "0")
    [pin] = (await inspector.retention.report(STREAM)).pins
    assert (pin.is_dead, pin.is_lowest) == (True, True)
    read_as(raw, "someone", 1)
    Ageing(raw, STREAM, GROUP).age()
    assert not (await inspector.retention.report(STREAM)).pins[0].is_dead, "its consumer was heard of just now"


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (RetentionPolicy(), 60),
        (RetentionPolicy(max_length=70), 30),
        (RetentionPolicy(max_length=20), 60),
        (RetentionPolicy(max_length=200), 0),
        (RetentionPolicy(max_bytes=0), 60),
        (RetentionPolicy(max_bytes=1 << 40), 0),
        (RetentionPolicy(max_age_s=3_600), 0),
        (RetentionPolicy(archived_only=True), 0),
    ],
)
async def test_a_policy_trims_what_is_finished_and_no_more(
    inspector: Inspector, raw: redis.Redis, policy: RetentionPolicy, goes: int
) -> None:
    add(raw, 100)
    settle(raw, 60)
    planned = await inspector.retention.trim(STREAM, policy, dry_run=True)
    assert (planned.entries, planned.is_dry_run, raw.xlen(STREAM)) == (goes, True, 100)
    done = await inspector.retention.trim(STREAM, policy)
    assert (done.entries, raw.xlen(STREAM)) == (goes, 100 - goes)
    assert bool(done.held_by) == (policy.max_length == 20 or policy.max_bytes == 0)


async def test_what_is_too_old_goes(inspector: Inspector, raw: redis.Redis) -> None:
    now_ms = int(time.time() * 1000)
    for age_s in (500, 400, 300, 200, 100):
        raw.xadd(STREAM, {"data": "x"}, id=f"{now_ms - age_s * 1000}-0")
    settle(raw, 5)
    report = await inspector.retention.trim(STREAM, RetentionPolicy(max_age_s=250))
    assert (report.entries, raw.xlen(STREAM)) == (3, 2)


async def test_what_is_young_stays_in_a_stream_that_is_too_long_to_be_counted(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.janitor._STEP", 10)
    monkeypatch.setattr("penstock.delivery.janitor._MAX_STEPS", 3)
    now_ms = int(time.time() * 1000)
    for n in range(100):
        raw.xadd(STREAM, {"data": "x"}, id=f"{now_ms - 3_600_000 if n < 50 else now_ms}-{n + 1}")
    settle(raw, 100)
    report = await inspector.retention.trim(STREAM, RetentionPolicy(max_age_s=60))
    assert 0 < report.entries <= 50
    assert raw.xlen(STREAM) == 100 - report.entries


async def test_only_what_is_archived_goes(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 10)
    settle(raw, 8)
    raw.xgroup_create(STREAM, "cold", ids[4])
    report = await inspector.retention.trim(STREAM, RetentionPolicy(archived_only=True))
    assert report.entries == 0
    assert "no group is named penstock-archive or penstock-archive-..." in report.note
    raw.xgroup_create(STREAM, "penstock-archive", ids[4])
    report = await inspector.retention.trim(STREAM, RetentionPolicy(archived_only=True))
    assert (report.entries, raw.xlen(STREAM)) == (5, 5)


@pytest.mark.usefixtures("default_server")
async def test_a_stream_without_a_group_has_nothing_that_is_finished(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 10)
    report = await inspector.retention.trim(STREAM, RetentionPolicy(max_length=1))
    assert (report.entries, raw.xlen(STREAM)) == (0, 10)
    assert "no group" in report.note


@pytest.mark.usefixtures("default_server")
async def test_many_streams_are_listed_in_pages(inspector: Inspector, raw: redis.Redis) -> None:
    for n in range(3):
        add(raw, 3, f"s{n}")
    page = await inspector.retention.page(limit=2)
    assert [info.stream for info in page.items] == ["s0", "s1"]
    assert [info.stream for info in (await inspector.retention.page(cursor=page.cursor)).items] == ["s2"]


@pytest.mark.usefixtures("default_server")
async def test_bad_input_is_refused(inspector: Inspector, raw: redis.Redis) -> None:
    with pytest.raises(NotFound):
        await inspector.retention.report("nothing")
    add(raw, 1)
    with pytest.raises(ConfigurationError, match="max_length=-1"):
        await inspector.retention.trim(STREAM, RetentionPolicy(max_length=-1))
