"""Metrics cover all parts, keep the names that dashboards know, and have bounded labels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from penstock import StreamClient
from penstock.ops import Inspector, Sampler
from penstock.ops.metrics import InspectorCollector
from penstock.redis.embedded import EmbeddedServer
from penstock.tasks import RedisTaskQueue, Task
from tests.ops.stage import GROUP, STREAM, add, give_up, read_as

pytestmark = pytest.mark.usefixtures("default_server")


def scrape(sampler: Sampler) -> dict[str, float]:
    """Returns the metrics as they are served."""
    registry = CollectorRegistry()
    registry.register(InspectorCollector(sampler))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_every_part_has_its_metrics(client: StreamClient, inspector: Inspector, raw: redis.Redis) -> None:
    await give_up(client, [1, 2])
    add(raw, 5)
    read_as(raw, "someone", 1)
    queue = RedisTaskQueue(client, "jobs")
    for n in range(3):
        await queue.enqueue(Task(kind="render", id=f"task-{n}"))
    await queue.pop()
    await queue.ack("task-0")
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    sampler = Sampler(inspector)
    await sampler.sample()
    await sampler.sample()
    found = scrape(sampler)
    labels = f'{{group="{GROUP}",stream="{STREAM}"}}'
    assert found["penstock_up"] == 1
    assert found[f"penstock_group_lag{labels}"] == 4
    assert found[f"penstock_group_pending{labels}"] == 1
    assert found[f"penstock_group_drain_seconds{labels}"] == float("inf")
    assert found['penstock_stream_length{kind="stream",stream="orders"}'] == 7
    assert found['penstock_dead_letters{owner="orders",stream="orders_dlq"}'] == 2
    assert found['queue_pending_total{kind="render",stream="jobs.tasks"}'] == 2
    assert found['queue_pending_idle_max_seconds{stream="jobs.tasks"}'] >= 0
    assert found['queue_ack_total{kind="render",queue="jobs"}'] == 1
    assert found['penstock_tasks{queue="jobs",state="queued"}'] == 2
    assert found['penstock_balancer_streams{service="svc",state="new"}'] == 0
    assert any(name.startswith("penstock_server_memory_bytes") for name in found)
    assert [name for name in found if not name.startswith(("penstock_", "queue_"))] == []


async def test_names_that_somebody_made_up_share_a_label(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ops.metrics.MOST_STREAMS", 5)
    for n in range(20):
        add(raw, 1, f"junk-{n:02}")
    sampler = Sampler(inspector)
    await sampler.sample()
    found = scrape(sampler)
    lengths = {name: value for name, value in found.items() if name.startswith("penstock_stream_length")}
    assert len(lengths) == 6
    assert lengths['penstock_stream_length{kind="other",stream="other"}'] == 15
    assert found["penstock_streams"] == 20


async def test_a_server_that_is_away_is_told(start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server()
    async with StreamClient.from_url(server.unix_url) as client:
        sampler = Sampler(Inspector(client))
        assert scrape(sampler)["penstock_up"] == 0, "nothing was sampled yet"
        await sampler.sample()
        assert scrape(sampler)["penstock_up"] == 1
        server.kill()
        await sampler.sample()
        assert scrape(sampler) == {"penstock_up": 0}
