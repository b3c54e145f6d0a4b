"""A Sampler keeps points, tells rates, and survives a server that goes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import redis

import penstock.ops.inspector as inspector_module
import penstock.ops.lag as lag_module
import penstock.ops.sampler as sampler_module
import penstock.ops.servers as servers_module
import penstock.ops.streams as streams_module
from penstock import StreamClient
from penstock.errors import ConnectionLost, NotFound
from penstock.ops import GroupLag, Inspector, Sampler, StreamPoint
from penstock.redis.embedded import EmbeddedServer
from tests.ops.stage import GROUP, STREAM, add, read_as

pytestmark = pytest.mark.every_server


async def test_what_a_reader_by_ids_commits_between_samples_is_a_batch(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 10)
    raw.xgroup_create(STREAM, "spark-revenue", ids[1])
    sampler = Sampler(inspector)
    await sampler.sample()
    assert [(each.group, each.lag.count, each.commits) for each in sampler.positions()] == [("spark-revenue", 8, ())]
    for place in (4, 4, 9):
        raw.xgroup_setid(STREAM, "spark-revenue", ids[place])
        await sampler.sample()
    [found] = sampler.positions()
    assert [(commit.position, commit.entries) for commit in found.commits] == [(ids[9], 5), (ids[4], 3)]
    assert (found.lag.count, found.in_per_s, found.drain_s) == (0, 0, 0)
    assert found.out_per_s is not None
    assert found.out_per_s > 0
    raw.xgroup_destroy(STREAM, "spark-revenue")
    await sampler.sample()
    assert sampler.positions() == []


async def test_rates_are_those_between_samples(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 10)
    read_as(raw, "someone", 2)
    sampler = Sampler(inspector)
    await sampler.sample()
    assert sampler.lag(STREAM, GROUP).in_per_s is None
    add(raw, 100)
    read_as(raw, "someone", 50)
    raw.xtrim(STREAM, maxlen=105, approximate=False)
    await sampler.sample()
    lag = sampler.lag(STREAM, GROUP)
    assert lag.count == 58
    assert lag.in_per_s is not None
    assert lag.out_per_s is not None
    assert lag.in_per_s / lag.out_per_s == pytest.approx(2.0)
    assert lag.drain_s is None
    first, last = sampler.points(STREAM)
    assert (first.lag, last.lag, last.length) == (8, 58, 105)
    assert (first.in_per_s, last.in_per_s) == (None, pytest.approx(lag.in_per_s))
    assert sampler.samples[-1].in_per_s == pytest.approx(lag.in_per_s)


async def test_lags_that_are_bounds_give_no_rates(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(raw, 3_000)
    read_as(raw, "someone", 1_500)
    raw.xdel(STREAM, ids[0])
    sampler = Sampler(inspector)

    async def sampled() -> tuple[GroupLag, StreamPoint]:
        await sampler.sample()
        return sampler.lag(STREAM, GROUP), sampler.points(STREAM)[-1]

    with monkeypatch.context() as patched:
        patched.setattr(streams_module, "LIST_STEPS", 0)
        await sampled()
        read_as(raw, "someone", 100)
        add(raw, 10)
        lag, point = await sampled()
        assert (lag.is_exact, lag.in_per_s, lag.out_per_s, point.out_per_s) == (False, None, None, None)
        assert point.in_per_s is not None
        assert point.in_per_s > 0
        [(_, condition)] = sampler.conditions()
        assert condition.text == "working"
        for _ in range(5):
            add(raw, 10)
            lag, _ = await sampled()
        assert (lag.is_exact, lag.out_per_s, lag.drain_s) == (False, 0.0, None), "it has read nothing since"
        [(_, condition)] = sampler.conditions()
        assert condition.text == "falling behind"
    lag, point = await sampled()
    assert (lag.is_exact, lag.out_per_s, point.out_per_s) == (True, None, None), "the bound was no lag to compare with"
    read_as(raw, "someone", 50)
    add(raw, 100)
    lag, _ = await sampled()
    assert lag.in_per_s is not None
    assert lag.out_per_s is not None
    assert lag.in_per_s / lag.out_per_s == pytest.approx(2.0)


@pytest.mark.parametrize("steps", [0, lag_module.LIST_STEPS])
async def test_a_fast_inflow_into_a_full_stream_is_counted_whole_or_not_at_all(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(lag_module, "_MANY", 500)
    monkeypatch.setattr(sampler_module, "LIST_STEPS", steps)
    add(raw, 3_000)
    read_as(raw, "someone", 3_000)
    raw.xgroup_create(STREAM, "spark-revenue", "$")
    sampler = Sampler(inspector)
    await sampler.sample()
    add(raw, 2_000)
    read_as(raw, "someone", 1_000)
    raw.xgroup_setid(STREAM, "spark-revenue", "$")
    raw.xtrim(STREAM, maxlen=3_000, approximate=False)
    await sampler.sample()
    lag, [reader] = sampler.lag(STREAM, GROUP), sampler.positions()
    is_counted = not raw.info()["redis_version"].startswith("6.") or steps > 0
    assert lag.count == 1_000
    assert (lag.in_per_s is not None) == is_counted
    assert [commit.entries for commit in reader.commits] == [2_000 if is_counted else None]
    if lag.in_per_s is not None and lag.out_per_s is not None:
        assert lag.in_per_s / lag.out_per_s == pytest.approx(2.0)


@pytest.mark.usefixtures("default_server")
async def test_a_stream_that_begins_anew_has_no_rate(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 10)
    read_as(raw, "someone", 2)
    sampler = Sampler(inspector)
    await sampler.sample()
    raw.delete(STREAM)
    add(raw, 5)
    read_as(raw, "someone", 1)
    await sampler.sample()
    assert sampler.lag(STREAM, GROUP).in_per_s is None


@pytest.mark.usefixtures("default_server")
async def test_a_stream_with_huge_entries_has_no_rates(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 2, data=b"x" * 3_000_000)
    read_as(raw, "someone", 1)
    sampler = Sampler(inspector)
    for _ in range(2):
        await sampler.sample()
    lag, point = sampler.lag(STREAM, GROUP), sampler.points(STREAM)[-1]
    assert (lag.count, lag.in_per_s, point.in_per_s, point.out_per_s) == (1, None, None, None)


@pytest.mark.usefixtures("default_server")
async def test_it_samples_by_itself_and_keeps_so_many(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 1)
    async with Sampler(inspector, every_s=0.001, keep=3, keep_streams=2) as sampler:
        for _ in range(5):
            assert await sampler.wait(60)
    assert len(sampler.samples) == 3
    assert len(sampler.points(STREAM)) == 2
    assert sampler.overview is not None
    assert sampler.overview.totals.entries == 1
    raw.delete(STREAM)
    await sampler.sample()
    assert sampler.points(STREAM) == ()
    with pytest.raises(NotFound):
        sampler.lag(STREAM, GROUP)


@pytest.mark.usefixtures("default_server")
async def test_a_server_that_is_away_gives_a_sample_with_an_error(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    server = start_server()
    async with StreamClient.from_url(server.unix_url) as client:
        sampler = Sampler(Inspector(client))
        assert not (await sampler.sample()).error
        server.kill()
        assert (await sampler.sample()).error
    assert len(sampler.samples) == 2


@pytest.mark.usefixtures("default_server")
async def test_a_sample_of_an_outage_has_the_time_of_the_servers_clock(
    inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def an_hour_ahead() -> float:
        return real_time() + 3_600

    async def fail(*_: object, **options: object) -> None:
        raise ConnectionLost("the connection broke")

    real_time, sampler = time.time, Sampler(inspector)
    clock = SimpleNamespace(time=an_hour_ahead, time_ns=lambda: round(an_hour_ahead() * 1e9), monotonic=time.monotonic)
    for module in (sampler_module, servers_module, inspector_module):
        monkeypatch.setattr(module, "time", clock)
    good = await sampler.sample()
    monkeypatch.setattr(type(inspector.streams), "overview", fail)
    bad = await sampler.sample()
    assert (good.error, bad.error) == ("", "the connection broke")
    assert abs(bad.at_ms - good.at_ms) < 600_000


@pytest.mark.usefixtures("default_server")
async def test_a_stream_without_a_group_has_an_inflow(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 10)
    sampler = Sampler(inspector)
    await sampler.sample()
    add(raw, 100)
    await sampler.sample()
    assert (sampler.points(STREAM)[-1].in_per_s or 0) > 0
    assert sampler.samples[-1].in_per_s > 0


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("error", [ConnectionLost("the connection broke"), ValueError("a bug")])
async def test_a_failure_at_any_point_gives_a_sample_with_an_error_and_the_next_one_is_taken(
    inspector: Inspector, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> list[int]:
        raise error

    sampler = Sampler(inspector, every_s=0.001)
    with monkeypatch.context() as patched:
        patched.setattr(sampler_module, "added_since", fail)
        async with sampler:
            assert await sampler.wait(60)
            assert str(error) in sampler.samples[-1].error
    assert not (await sampler.sample()).error
