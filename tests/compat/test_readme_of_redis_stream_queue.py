# ruff: noqa: T201 (the blocks print)
"""What the README of redis-stream-queue shows works with the import changed to `penstock`.

Each test is one of its code blocks; beside the import only the address of the server is another.
"""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis

from penstock import ConsumerConfig, ConsumerGroup, StreamClient, StreamConsumer, StreamProducer
from penstock.redis.embedded import LOOPBACK, EmbeddedServer
from tests.helpers.aio import Task, eventually, start


@pytest.fixture
def address(default_server: EmbeddedServer) -> dict[str, Any]:
    """Stands in for host="localhost"."""
    return {"host": LOOPBACK, "port": default_server.port}


@asynccontextmanager
async def until_cancelled(*runs: Any) -> AsyncIterator[list[Task[Any]]]:
    """Runs what the README says is ended by Ctrl-C or CancelledError, and ends it that way."""
    tasks = [start(run) for run in runs]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def handle(messages: list[Any]) -> list[str]:
    for msg in messages:
        print(f"processing: {msg.data}")
    return [m.id for m in messages]


def pending(raw: redis.Redis, stream: str = "orders", group: str = "order_workers") -> int:
    return int(raw.xpending(stream, group)["pending"])


# --- Quick Start ----------------------------------------------------------------------------------


async def test_quick_start_producer(address, raw, capsys):
    client = StreamClient(**address)
    producer = StreamProducer(client=client, stream="orders", group="order_workers")

    await producer.ensure_group()
    msg_id = await producer.push({"order_id": 1})
    print(f"pushed: {msg_id}")
    await client.close()

    [(entry_id, entry)] = raw.xrange("orders")
    assert capsys.readouterr().out == f"pushed: {entry_id.decode()}\n"
    assert entry[b"data"] == b'{"order_id":1}'
    assert [group["name"] for group in raw.xinfo_groups("orders")] == [b"order_workers"]


async def test_quick_start_consumer(address, raw, capsys):
    async def on_dlq(msg, reason):
        print(f"DLQ [{reason}]: {msg.data}")

    client = StreamClient(**address)
    config = ConsumerConfig(
        group="order_workers",
        dlq_stream="orders_dlq",
        batch_size=100,
        block_ms=5_000,
        max_deliveries=3,
    )
    consumer = StreamConsumer(
        client=client,
        stream="orders",
        config=config,
        handler=handle,
        dlq_handler=on_dlq,
    )
    async with until_cancelled(consumer.run) as [run]:
        await StreamProducer(client, "orders").push_many([{"order_id": 1}, {"order_id": 2}])
        raw.xadd("orders", {"data": "{not json"})
        await eventually(lambda: consumer.metrics().total_acked == 2 and consumer.metrics().total_dlq == 1)
        await eventually(lambda: pending(raw) == 0)
    assert run.cancelled(), "run() ends with the CancelledError that it was sent"
    printed = capsys.readouterr().out
    assert "processing: {'order_id': 1}\nprocessing: {'order_id': 2}\n" in printed
    assert "DLQ [decode_error]: b'{not json'" in printed
    assert raw.xlen("orders_dlq") == 1, "the named stream is written, which that library leaves to the handler"
    await client.close()


async def test_a_poison_pill_reaches_the_dlq_handler_after_max_deliveries(address, raw):
    told = []

    async def on_dlq(msg, reason):
        told.append((msg.data, reason))

    async def fail(messages):
        raise RuntimeError("always")

    async with StreamClient(**address) as client:
        config = ConsumerConfig(
            group="order_workers", dlq_stream="orders_dlq", block_ms=100, min_idle_claim_ms=60_000, max_deliveries=3
        )
        consumer = StreamConsumer(client=client, stream="orders", config=config, handler=fail, dlq_handler=on_dlq)
        await StreamProducer(client, "orders").push({"order_id": 13})
        async with until_cancelled(consumer.run):
            await eventually(lambda: told)
        assert told == [({"order_id": 13}, "max_deliveries")]
        assert consumer.metrics().total_errors == 3
        assert raw.xlen("orders_dlq") == 1


@pytest.mark.parametrize(("returned", "warns"), [([], False), (None, True)])
async def test_handler_contract(address, raw, caplog, returned, warns):
    async def leave_all(messages):
        return returned

    async with StreamClient(**address) as client:
        await StreamProducer(client, "orders").push({"order_id": 1})
        config = ConsumerConfig(group="order_workers", block_ms=100)
        consumer = StreamConsumer(client=client, stream="orders", config=config, handler=leave_all)
        await consumer.run_once()
        await consumer.close()
    assert pending(raw) == 1, "what is not returned stays pending for a retry"
    assert ("returned None" in caplog.text) is warns


# --- metrics --------------------------------------------------------------------------------------


async def test_consumer_throughput_metrics(address, capsys):
    async def monitor(consumer):
        while True:
            m = consumer.metrics()
            print(
                f"in={m.tps_in:.1f} msg/s  out={m.tps_out:.1f} msg/s  total={m.tps_total:.1f} msg/s  "
                f"avg={m.avg_tps:.1f} msg/s  "
                f"read={m.total_read}  acked={m.total_acked}  "
                f"dlq={m.total_dlq}  errors={m.total_errors}  "
                f"uptime={m.uptime_secs:.0f}s"
            )
            await asyncio.sleep(0.01)  # it prints now and then: it waits for nothing

    async with StreamClient(**address) as client:
        config = ConsumerConfig(group="order_workers")
        consumer = StreamConsumer(client=client, stream="orders", config=config, handler=handle)

        async def both() -> None:
            await asyncio.gather(consumer.run(), monitor(consumer))

        async with until_cancelled(both):
            await StreamProducer(client, "orders").push_many([{"n": n} for n in range(30)])
            await eventually(lambda: consumer.metrics().total_acked == 30)
            await eventually(lambda: "read=30  acked=30  dlq=0  errors=0  uptime=" in capsys.readouterr().out)
        m = consumer.metrics()
    assert m.tps_in > 0
    assert m.tps_out > 0
    assert m.tps_total == pytest.approx(m.tps_in + m.tps_out)


async def test_producer_throughput_metrics(address, capsys):
    async with StreamClient(**address) as client:
        producer = StreamProducer(client=client, stream="orders")
        await producer.push({"n": 0})
        await producer.push_many([{"n": 1}, {"n": 2}])
    m = producer.metrics()
    print(f"push={m.tps:.1f} msg/s  avg={m.avg_tps:.1f} msg/s  total={m.total_pushed}  uptime={m.uptime_secs:.0f}s")
    printed = capsys.readouterr().out
    assert re.fullmatch(r"push=\d+\.\d msg/s  avg=\d+\.\d msg/s  total=3  uptime=\d+s\n", printed), printed


async def test_process_wide_metrics_of_several_instances(address):
    def living() -> tuple[int, int]:
        """Those of this test: other tests may have left some, which may go at any moment."""
        consumers = [m for m in StreamConsumer.all_metrics() if m.total_acked in {2_347, 2_351}]
        producers = [m for m in StreamProducer.all_metrics() if m.total_pushed in {2_347, 2_351}]
        return len(consumers), len(producers)

    async with StreamClient(**address) as client:
        cfg_a, cfg_b, cfg_c = (ConsumerConfig(group=name, block_ms=100) for name in ("a", "b", "c"))
        c1 = StreamConsumer(client=client, stream="orders", config=cfg_a, handler=handle)
        c2 = StreamConsumer(client=client, stream="payments", config=cfg_b, handler=handle)
        c3 = StreamConsumer(client=client, stream="events", config=cfg_c, handler=handle)

        async with until_cancelled(c1.run, c2.run, c3.run):
            p1 = StreamProducer(client=client, stream="orders")
            p2 = StreamProducer(client=client, stream="payments")
            await p1.push_many([{"n": n} for n in range(2_347)])
            await p2.push_many([{"n": n} for n in range(2_351)])
            await eventually(lambda: living() == (2, 2))

        for m in StreamConsumer.all_metrics():
            print(f"in={m.tps_in:.1f}  out={m.tps_out:.1f}  acked={m.total_acked}")
        for m in StreamProducer.all_metrics():
            print(f"tps={m.tps:.1f}  pushed={m.total_pushed}")
    del c1, c2, c3, p1, p2
    await eventually(lambda: gc.collect() >= 0 and living() == (0, 0))  # nobody holds them any more


# --- monitoring -----------------------------------------------------------------------------------


async def test_stream_and_group_monitoring(address, raw, capsys):
    async with StreamClient(**address) as client:
        producer = StreamProducer(client, "orders", group="order_workers")
        await producer.ensure_group()
        ids = await producer.push_many([{"n": n} for n in range(10)])
        raw.xreadgroup("order_workers", "pod-a", {"orders": ">"}, count=4)
        raw.xadd("orders_dlq", {"data": "{}"})

        cg = ConsumerGroup(client, stream="orders", group="order_workers")

        stats = await cg.stats(dlq_stream="orders_dlq")
        print(f"length={stats.stream_length}  lag={stats.lag}  pel={stats.group_pel_size}")
        for c in stats.consumers:
            print(f"  consumer={c.name}  pending={c.pending}  idle={c.idle_ms >= 0}")

        health = await cg.health_check(max_lag=1_000, max_idle_ms=60_000)
        print(f"healthy={health['healthy']}  issues={health['issues']}")

        pending_entries = await cg.pending_details(count=50)
        for entry in pending_entries:
            print(f"  {entry.id}  consumer={entry.consumer}  deliveries={entry.delivery_count}")

        assert (stats.stream, stats.group, stats.last_delivered_id, stats.dlq_length) == (
            "orders",
            "order_workers",
            ids[3],
            1,
        )
        assert health["stats"].lag == 6
        assert (await cg.health_check(max_lag=5))["healthy"] is False
    assert capsys.readouterr().out.splitlines() == [
        "length=10  lag=6  pel=4",
        "  consumer=pod-a  pending=4  idle=True",
        "healthy=True  issues=[]",
        *(f"  {entry_id}  consumer=pod-a  deliveries=1" for entry_id in ids[:4]),
    ]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # no close()
def test_a_consumer_beside_a_monitor_ends_in_order_with_asyncio_run(address, raw):
    # gather() returns as soon as the monitor is cancelled, and asyncio.run() then cancels whatever still winds up.
    begun = asyncio.Event()

    async def slow(messages):
        begun.set()
        await asyncio.Event().wait()  # until it is cancelled
        return [m.id for m in messages]

    async def monitor():
        await eventually(begun.is_set)
        raise asyncio.CancelledError

    async def main():
        client = StreamClient(**address)
        await StreamProducer(client, "orders").push_many([{"n": n} for n in range(5)])
        consumer = StreamConsumer(
            client=client, stream="orders", config=ConsumerConfig(group="order_workers"), handler=slow
        )
        await asyncio.gather(consumer.run(), monitor())

    before, others = signal.getsignal(signal.SIGTERM), set(threading.enumerate())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    left = {thread.name for thread in set(threading.enumerate()) - others}  # queues of other tests may have theirs
    assert "penstock-leases" not in left, "leases are renewed for nobody"
    assert signal.getsignal(signal.SIGTERM) is before
    waiting = raw.zcard("{orders}:retries:order_workers")
    assert waiting == pending(raw) == 5, "what was begun is handed back, for the next consumer to take at once"
