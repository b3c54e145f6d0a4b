"""Metrics cover all parts, keep the names that dashboards know, and have bounded labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from penstock import RedisMessageQueue, StreamClient
from penstock.ops import Inspector, Sampler, TaskQueueInfo
from penstock.ops.metrics import MAX_QUEUES, InspectorCollector, _bounded, _task_metrics
from penstock.redis.embedded import EmbeddedServer
from penstock.tasks import RedisTaskQueue, Task
from tests.ops.stage import GROUP, STREAM, add, give_up, read_as

pytestmark = pytest.mark.usefixtures("default_server")
QUEUE_STATES = ("pending", "processing", "retrying", "dead")


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
    mails = RedisMessageQueue("mails", client=client)
    for n in range(3):
        await mails.publish({"to": n})
    position = raw.xrange(STREAM)[-5][0]
    raw.xgroup_create(STREAM, "revenue", position)
    sampler = Sampler(inspector)
    async with mails.process_message():
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
    mails = {state: found[f'penstock_queue_messages{{queue="mails",state="{state}"}}'] for state in QUEUE_STATES}
    assert mails == {"pending": 2, "processing": 1, "retrying": 0, "dead": 0}
    reader = '{kind="position",reader="revenue",stream="orders"}'
    assert found[f"penstock_reader_lag{reader}"] == 4
    assert found[f"penstock_reader_oldest_unread_seconds{reader}"] >= 0
    assert found[f"penstock_reader_position_time_seconds{reader}"] == int(position.split(b"-")[0]) / 1000
    assert any(name.startswith("penstock_server_memory_bytes") for name in found)
    assert [name for name in found if not name.startswith(("penstock_", "queue_"))] == []


async def test_dead_letters_have_their_metric_where_the_pattern_matches_their_source_only(
    client: StreamClient, inspector: Inspector
) -> None:
    await give_up(client, [1, 2])
    sampler = Sampler(inspector, match=STREAM)
    await sampler.sample()
    assert sampler.samples[-1].totals.dead_letters == 2
    assert scrape(sampler)['penstock_dead_letters{owner="orders",stream="orders_dlq"}'] == 2


async def test_groups_without_metrics_are_counted(inspector: Inspector, raw: redis.Redis) -> None:
    for n in range(70):
        raw.xgroup_create(STREAM, f"group-{n}", "0", mkstream=True)
    raw.xgroup_create("others", GROUP, "0", mkstream=True)
    sampler = Sampler(inspector)
    await sampler.sample()
    found = {name: value for name, value in scrape(sampler).items() if "unlisted" in name}
    assert found == {'penstock_stream_groups_unlisted{stream="orders"}': 6}


async def test_names_that_somebody_made_up_share_a_label(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ops.metrics.MAX_STREAMS", 5)
    for n in range(20):
        add(raw, 1, f"junk-{n:02}")
    sampler = Sampler(inspector)
    await sampler.sample()
    found = scrape(sampler)
    lengths = {name: value for name, value in found.items() if name.startswith("penstock_stream_length")}
    assert len(lengths) == 6
    assert lengths['penstock_stream_length{kind="other",stream="other"}'] == 15
    assert found["penstock_streams"] == 20


async def test_every_task_queue_is_counted_however_many_there_are(inspector: Inspector, raw: redis.Redis) -> None:
    for n in range(MAX_QUEUES + 3):
        raw.sadd(f"{{jobs-{n:03}}}:lanes", "normal")
        raw.hset(f"{{jobs-{n:03}}}:index", "task", "1-0 normal")
        raw.xadd(f"jobs-{n:03}.tasks", {"data": "x"})
    sampler = Sampler(inspector)
    await sampler.sample()
    found = scrape(sampler)
    assert (
        len([name for name in found if name.startswith("penstock_tasks{") and 'state="queued"' in name]) == MAX_QUEUES
    )
    assert found['penstock_tasks{queue="other",state="other"}'] == 3


def test_queues_kinds_and_lanes_that_somebody_made_up_share_a_label() -> None:
    queues = [
        TaskQueueInfo(
            f"junk-{n}", 1, 1, 0, 0, 0, 0, 0, float(n), lanes=300, open_by_kind={f"kind-{n}": 1}, dead_trimmed=1
        )
        for n in range(300)
    ]
    queues[0] = replace(queues[0], done_by_kind={f"kind-{n}": 1 for n in range(300)})
    found = {family.name: {tuple(each.labels.values()): each.value for each in family.samples}
             for family in _task_metrics(queues, ())}  # fmt: skip
    idle = found["queue_pending_idle_max_seconds"]
    assert len(idle) == 101
    assert (idle["junk-7.tasks",], idle["other",]) == (7.0, 299.0)
    done = found["queue_ack"]
    assert len(done) == 201
    assert done["other", "junk-0"] == 100
    assert (len(found["penstock_tasks"]), found["penstock_tasks"]["other", "other"]) == (501, 200)
    assert found["penstock_dead_tasks_trimmed"]["other",] == 200
    assert sum(found["queue_pending_total"].values()) == 300


def test_those_that_share_a_label_have_their_sum_or_the_worst_age() -> None:
    rows = [(["orders", str(n)], float(n)) for n in range(10)]
    assert _bounded(rows, 10) == rows
    assert _bounded(rows, 8) == [*rows[:8], (["other", "other"], 17.0)]
    assert _bounded(rows, 8, max)[-1] == (["other", "other"], 9.0)


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


def test_names_that_look_the_same_share_a_label() -> None:
    rows = [(["a"], 1.0), (["\N{REPLACEMENT CHARACTER}"], 2.0), (["\N{REPLACEMENT CHARACTER}"], 3.0), (["other"], 4.0)]
    assert _bounded(rows, 3, max) == [(["a"], 1.0), (["\N{REPLACEMENT CHARACTER}"], 3.0), (["other"], 4.0)]
    assert _bounded(rows[::-1], 2) == [(["other"], 5.0), (["\N{REPLACEMENT CHARACTER}"], 5.0)]
