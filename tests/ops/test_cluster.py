"""The Inspector works on a cluster: streams of all nodes, scripts on all nodes, names with hash tags."""

from __future__ import annotations

from penstock import ConsumerGroup, StreamClient, StreamProducer
from penstock.ops import DeadLetterFilter, Inspector, RetentionPolicy, Sampler, StreamKind, TaskState
from penstock.tasks import RedisTaskQueue, Task
from penstock.testing import Cluster
from tests.ops.stage import GROUP, give_up


def connect(cluster: Cluster) -> StreamClient:
    return StreamClient.from_cluster([{"host": host, "port": port} for host, port in cluster.addresses])


async def test_streams_of_all_nodes_are_seen(cluster: Cluster) -> None:
    async with connect(cluster) as client:
        for n in range(9):
            await StreamProducer(client, f"{{s{n}}}").push_many([1, 2])
            await ConsumerGroup(client, f"{{s{n}}}", GROUP).ensure()
        inspector = Inspector(client)
        overview = await inspector.overview()
        assert len(overview.servers) == 3
        assert (overview.totals.streams, overview.totals.lag) == (9, 18)
        await Sampler(inspector).sample()
        report = await inspector.retention.trim("{s1}", RetentionPolicy(), dry_run=True)
        assert report.entries == 0


async def test_dead_letters_and_tasks_of_a_cluster(cluster: Cluster) -> None:
    async with connect(cluster) as client:
        await give_up(client, [1, 2], "{orders}")
        queue = RedisTaskQueue(client, "jobs")
        await queue.enqueue(Task(kind="render", id="one"))
        await queue.pop()
        await queue.dead_letter("one", error="ValueError")
        await queue.enqueue(Task(kind="render", id="two"))
        inspector = Inspector(client)
        found = {each.stream: (each.kind, each.owner) for each in (await inspector.dead_letters.streams()).items}
        assert found == {
            "{orders}_dlq": (StreamKind.STREAM, "{orders}"), "{jobs}.dead": (StreamKind.TASKS, "jobs"),
        }  # fmt: skip
        assert (await inspector.dead_letters.redrive("{orders}", DeadLetterFilter(text="is odd"))).redriven == 1
        assert (await inspector.dead_letters.redrive("jobs")).new_ids == ("one",)
        assert await inspector.tasks.names() == ["jobs"]
        assert [task.id for task in (await inspector.tasks.tasks("jobs", TaskState.QUEUED)).items] == ["two", "one"]
        assert await inspector.tasks.cancel("jobs", "two") == "cancelled"


async def test_a_stream_without_a_hash_tag_is_found_by_the_doctor(cluster: Cluster) -> None:
    async with connect(cluster) as client:
        await StreamProducer(client, "orders").push(1)
        await ConsumerGroup(client, "orders", GROUP).ensure()
        assert "hash-tags" in {finding.check for finding in await Inspector(client).doctor()}
        assert (await Inspector(client).servers.failover_ms() or 0) > 0
