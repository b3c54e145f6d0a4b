"""A server on which something of everything happens, for pages to show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import redis

from penstock import StreamMessage
from penstock.errors import FatalError
from penstock.sync import (
    ConsumerConfig,
    RedisMessageQueue,
    StreamBalancer,
    StreamClient,
    StreamConsumer,
    StreamProducer,
)
from penstock.sync.tasks import RedisTaskQueue, Task
from penstock.tasks import Result

REFUSED = 7  # orders that the handler gives up


def _ship(message: StreamMessage) -> None:
    if message.data["order"] % 50 < REFUSED:
        raise FatalError(f"customer {message.data['customer']} has no address")


def _streams(client: StreamClient, raw: redis.Redis) -> None:
    for name, count in (("orders", 120), ("invoices", 60)):
        orders = [{"order": i, "customer": f"c-{i % 17}", "total": 20 * (i % 9) + 5} for i in range(count)]
        StreamProducer(client, name).push_many(orders)
    config = ConsumerConfig(group="shipping", batch_size=60)
    StreamConsumer(client, "orders", config, message_handler=_ship).run_once()
    # A consumer that has died with messages in its hands.
    raw.xgroup_create("orders", "billing", "0")
    raw.xreadgroup("billing", "billing-7f9c", {"orders": ">"}, count=30)
    raw.xgroup_create("invoices", "mailer", "0")
    # What a Spark query and an archive leave: groups that nobody reads through.
    half = raw.xrange("orders", count=60)[-1][0]
    for group in ("spark-revenue", "penstock-archive"):
        raw.xgroup_create("orders", group, half)


def _queue(client: StreamClient) -> None:
    queue = RedisMessageQueue("emails", client=client, enable_completed_queue=True, deduplication=False)
    for i in range(8):
        queue.publish({"to": f"user-{i}@example.com"})
    for _ in range(3):
        with queue.process_message():
            pass


def _tasks(client: StreamClient, raw: redis.Redis) -> None:
    with RedisTaskQueue(client, "jobs") as queue:
        queue.enqueue_many([Task(kind="resize", id=f"photo-{i}", payload={"photo": i}) for i in range(6)])
        done, dead = queue.pop(), queue.pop()
        assert done is not None
        assert dead is not None
        queue.finish_many([Result(task_id=done.id, kind=done.kind, status="ok", data={"width": 640})])
        queue.dead_letter(dead.id, "fatal", error="ValueError", text="not a photo")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        for name in ("nightly", "weekly"):
            queue.enqueue(Task(kind="report", id=f"cron.{name}.{tomorrow:%Y%m%dT%H%M%SZ}"), at=tomorrow)
        raw.hset("{jobs}:paused", "weekly", int(tomorrow.timestamp() - 90_000) * 1_000)


@contextmanager
def busy_server(url: str, raw: redis.Redis) -> Iterator[StreamClient]:
    """Fill an empty server, and keep a balanced service running on it."""
    with StreamClient.from_url(url) as client, ExitStack() as stack:
        _streams(client, raw)
        _queue(client)
        _tasks(client, raw)
        balancer = StreamBalancer(client, "telemetry", id="reader-1")
        notices = stack.enter_context(balancer)
        for i in range(4):
            raw.xadd(f"device-{i}", {"data": "{}"})
            balancer.add_stream(f"device-{i}")
        for _ in range(4):
            next(iter(notices))
        yield client
