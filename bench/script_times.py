"""How long each script holds the server up when every entry has a megabyte.

    python -m bench.script_times [--entries 60] [--bytes 1000000] [--rounds 3] [--strict]

Fills streams, a message queue, tasks and dead letters on each test server that is installed, and does with them
whatever the library can do: publish, hand out, retry, recover, give up, redrive, count, trim, look. Prints for each
script, by the server's own slow log, how often it took longer than a millisecond, the median of those times and the
longest. The slow log measures by the clock, so that a script during which the machine ran something else looks slow:
root lets the server run before everything else, the longest time counts in the best of the rounds, and the worst of
all is printed beside it. With --strict the exit
code is 1 when a script takes longer than 10 ms in every round.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

import redis

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import FatalError, RetryLater
from penstock.ops.model import TaskState
from penstock.redis import scripts
from penstock.redis.retry import Repeat
from penstock.sync import (
    ConsumerConfig,
    ConsumerGroup,
    RedisMessageQueue,
    StreamBalancer,
    StreamClient,
    StreamConsumer,
    StreamMessage,
    StreamProducer,
)
from penstock.sync.delivery.dead_letters import DeadLetters
from penstock.sync.ops import Inspector
from penstock.sync.tasks import RedisTaskQueue, Result, Task, Worker
from penstock.tasks.handlers import Handlers, Retry
from penstock.tasks.lanes import Lane, suffix_of
from penstock.testing.servers import TEST_SERVERS, ServerKind

LIMIT_MS = 10.0
_SLOW_US, _MOST_SLOW = 1_000, 100_000
_GROUP = "workers"
_SERVER_OPTIONS = {"slowlog-log-slower-than": str(_SLOW_US), "slowlog-max-len": str(_MOST_SLOW)}
_BEGINNING = 40  # characters of an argument that the slow log has in any case
_NAMES = {
    word[:_BEGINNING]: name
    for name in scripts.names()
    for word in (scripts.script(name).sha, scripts.script(name).source)
}


class Large:
    """What is done to one server with entries of that size."""

    def __init__(self, client: StreamClient, raw: redis.Redis, entries: int, size: int) -> None:
        self.client, self.raw, self.entries, self.text = client, raw, entries, "x" * size
        self.inspector = Inspector(client)

    def streams(self) -> None:
        """Publish, hand out, retry, recover, dead-letter, redrive, count and trim messages of a stream."""
        client, count = self.client, self.entries
        producer, group = StreamProducer(client, "orders", max_len=10 * count), ConsumerGroup(client, "orders", _GROUP)
        group.ensure()
        producer.push_many([self.text] * count)
        for n in range(5):
            producer.push(self.text, dedup_key=f"once-{n}", headers={"n": str(n)})
        group.lag()
        self.raw.xreadgroup(_GROUP, "dead", {"orders": ">"}, count=count // 2)
        group.stats()
        self._consume("orders", _retry_once)
        self._consume("orders", _refuse)
        group.health_check()
        letters = DeadLetters(client, "orders")
        letters.list(10)
        letters.redrive()
        self._consume("orders", _accept)
        producer.push_many([self.text] * count)
        self.raw.xtrim("orders", maxlen=count - 1, approximate=False)
        group.lag()
        self._consume("orders", _accept)
        group.trim(count // 2)
        group.trim(0)
        StreamProducer(client, "full", max_len=count // 2, on_full="drop_oldest").push_many([self.text] * count)

    def _consume(self, stream: str, handle: Callable[[StreamMessage], object]) -> None:
        # Until nothing is unread or pending any more, or everything that is left waits for a retry.
        config = ConsumerConfig(
            group=_GROUP, batch_size=20, block_ms=20, min_idle_claim_ms=60, recovery_interval_ms=20,
            retry_initial_delay_ms=20, handle_signals=False,
        )  # fmt: skip
        consumer = StreamConsumer(self.client, stream, config, message_handler=handle)
        group, is_done = ConsumerGroup(self.client, stream, _GROUP), False
        while not is_done:
            report = consumer.run_once()
            is_done = not report.read and not group.pending_details(1)
        consumer.close()

    def queue(self) -> None:
        """Publish, process, retry, dead-letter, redrive, look at and purge messages of a queue."""
        queue = RedisMessageQueue(
            "mails", client=self.client, enable_completed_queue=True, retry_delay_seconds=0.01,
            max_retry_delay_seconds=0.02, max_delivery_count=2, deduplication=False, max_payload_bytes=2 << 20,
        )  # fmt: skip
        for _ in range(self.entries):
            queue.publish(self.text)
        for source in ("pending", "processing", "retrying"):
            queue.peek(20, source=source)
        for n in range(self.entries // 2):
            _process(queue, fails=n % 2 == 0)
        while queue.stats().retrying or queue.stats().processing:
            _process(queue, fails=True)
        for source in ("completed", "dead_letter"):
            queue.peek(20, source=source)
        queue.redrive_dead_letters()
        queue.stats()
        for target in ("pending", "completed", "dead_letter"):
            queue.purge(target=target)
        queue.close()

    def tasks(self) -> None:
        """Enqueue, run, retry, move, free, cancel, give up and redrive tasks; store large results and let them go."""
        client, count, handlers = self.client, self.entries, Handlers()
        payload, ends = {"text": self.text}, {"fails": True, "text": self.text}

        @handlers.task("render", retry=Retry(max_attempts=2, initial_delay_ms=10, max_delay_ms=20))
        def render(task: Task) -> dict[str, str]:
            if "fails" in task.payload:
                raise ValueError("no")
            return {"text": self.text}

        with RedisTaskQueue(client, "jobs", idle_ms=60, result_ttl_ms=50, max_payload_bytes=2 << 20) as queue:
            queue.enqueue_many([Task(kind="render", payload=payload) for _ in range(count)])
            queue.enqueue_many([Task(kind="render", payload=payload) for _ in range(count // 4)], delay=0.01)
            queue.enqueue_many([Task(kind="other", payload=payload) for _ in range(count // 4)])
            late = queue.enqueue_many([Task(kind="render", payload=payload) for _ in range(4)], delay=3_000)
            for state in (TaskState.QUEUED, TaskState.SCHEDULED):
                self.inspector.tasks.tasks("jobs", state)
            queue.list_tasks(10)
            for task_id in late:
                self.inspector.tasks.cancel("jobs", task_id)
            with RedisTaskQueue(client, "jobs", idle_ms=60) as dead:
                for _ in range(5):
                    dead.pop_many(10, block=False)
                self.inspector.tasks.tasks("jobs", TaskState.RUNNING)
            queue.enqueue_many([Task(kind="render", payload=ends) for _ in range(count // 4)])
            Worker(queue, handlers, burst=True, concurrency=8, handle_signals=False).run()
            queue.push_result(Result(task_id="by-itself", kind="render", data=payload))
            queue.dead.redrive()
            queue.requeue_orphans(1)
            queue.trim()
            queue.gauges()

    def lanes(self) -> None:
        """Look for tasks whose entries vanished in very many lanes that begin with large ones, and give them up."""
        with RedisTaskQueue(self.client, "lanes", max_payload_bytes=2 << 20) as queue:
            names = [Lane(kind=f"k{n}").name for n in range(min(250, 4 * self.entries))]
            self.raw.sadd(queue.keys.lanes, *names)
            for n, name in enumerate(names):
                stream = queue.keys.tasks(suffix_of(name)).stream
                gone = self.raw.xadd(stream, {"data": "gone"})
                self.raw.xdel(stream, gone)
                first, last = (self.raw.xadd(stream, {"data": text}) for text in (self.text, "small"))
                tasks = {f"{what}-{n}": entry for what, entry in (("gone", gone), ("first", first), ("last", last))}
                index = {task_id: f"{entry.decode()} {name}" for task_id, entry in tasks.items()}
                self.raw.hset(queue.keys.index, mapping=index)
            for _ in range(10):
                queue.trim()

    def dead_letters(self) -> None:
        """Keep dead letters within limits of every kind, with large records and with very many small ones."""
        client, count = self.client, self.entries
        for stream, size in (("large_dlq", len(self.text)), ("small_dlq", 200)):
            records = count if size > 1_000 else 100_000
            pipeline = self.raw.pipeline(transaction=False)
            for _ in range(records):
                pipeline.xadd(stream, {"data": b"x" * size, "dlq_reason": "fatal"})
            pipeline.execute()
            for limits in ((0, 0, 0), (records * 3 // 4, 0, 0), (0, 0, records * size // 2), (0, 1, 0)):
                while client.run("shared/limit_dead_letters", [stream], [*limits, 0], Repeat.IDEMPOTENT)[1]:
                    pass

    def inspect(self) -> None:
        """Look at everything as operators do."""
        for stream in ("orders", "orders_dlq", "mails", "jobs.tasks", "jobs.dead", "seen"):
            self.raw.xadd(stream, {"data": self.text, "dlq_reason": "fatal"} if "d" in stream[-4:] else {"data": "x"})
        pipeline = self.raw.pipeline(transaction=False)
        for _ in range(self.entries):
            pipeline.xadd("seen", {"data": self.text})
        pipeline.execute()
        self.raw.xgroup_create("seen", _GROUP, "0")
        self.raw.xreadgroup(_GROUP, "dead", {"seen": ">"}, count=self.entries // 3)
        look = self.inspector
        look.overview(count_lags=True)
        look.streams.entries("seen")
        look.streams.entries("seen", text="nowhere")
        look.groups.lags()
        look.pending.page("seen", _GROUP)
        look.retention.report("seen")
        look.dead_letters.streams()
        look.dead_letters.page("orders")
        look.dead_letters.failures("orders")
        look.doctor()

    def balancer(self) -> None:
        """Give up entries of a balanced service that are a megabyte of something else."""
        for _ in range(self.entries // 4):
            self.raw.xadd("service-input", {"junk": self.text})
        balancer = StreamBalancer(self.client, "service", id="one")
        with balancer as notices:
            balancer.add_stream("device")
            next(iter(notices))


def _retry_once(message: StreamMessage) -> None:
    if message.attempts == 1:
        raise RetryLater(0.02)


def _accept(message: StreamMessage) -> None:
    """Be done with a message."""


def _refuse(message: StreamMessage) -> None:
    raise FatalError("no")


def _process(queue: RedisMessageQueue, *, fails: bool) -> None:
    try:
        with queue.process_message() as message:
            if message is not None and fails:
                raise ValueError("no")
    except ValueError:
        pass


_STEPS = (
    Large.streams, Large.queue, Large.tasks, Large.lanes, Large.dead_letters, Large.inspect, Large.balancer,
)  # fmt: skip


def measured(kind: ServerKind, entries: int, size: int) -> dict[str, list[float]]:
    """Return the times of slow scripts and commands on a fresh server, in ms, by name."""
    found: dict[str, list[float]] = defaultdict(list)
    with (
        kind.server(options=_SERVER_OPTIONS) as server,
        StreamClient.from_url(server.unix_url, socket_timeout=60, dead_letter_limits=DeadLetterLimits.none()) as client,
    ):
        raw = redis.Redis(unix_socket_path=server.unix_socket, socket_timeout=60)
        with suppress(AttributeError, OSError):  # Linux, and with the right to do so: no other process comes before it
            os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))
        for step in _STEPS:
            step(Large(client, raw, entries, size))
        for entry in client.call("", "SLOWLOG", "GET", _MOST_SLOW):
            command = [word.decode(errors="replace") for word in entry[3][:2]]
            is_script = command[0].upper() in {"EVALSHA", "EVAL"}
            found[
                _NAMES.get(command[1][:_BEGINNING], command[1][:_BEGINNING]) if is_script else f"({command[0].upper()})"
            ].append(entry[2] / 1000)
        raw.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, default=60, help="of each kind")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of each payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", help="only the one of this name")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a script takes too long")
    options = parser.parse_args(arguments)
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # every dead letter is an error
    is_within = True
    for kind in TEST_SERVERS:
        if kind.is_installed and options.server in {None, kind.name}:
            rounds = [measured(kind, options.entries, options.bytes) for _ in range(options.rounds)]
            is_within = _show(kind.name, rounds) and is_within
    return 0 if is_within or not options.strict else 1


def _show(server: str, rounds: Sequence[dict[str, list[float]]]) -> bool:
    print(f"\n{server:36}{'above 1 ms':>11}{'median ms':>11}{'longest ms':>12}{'worst ms':>10}")
    is_within = True
    for name in sorted({name for times in rounds for name in times}):
        all_times = [time for times in rounds for time in times.get(name, ())]
        longest = min(max(times.get(name, [0.0])) for times in rounds)
        is_bounded = longest <= LIMIT_MS or name.startswith("(")
        is_within = is_within and is_bounded
        figures = f"{len(all_times):11}{median(all_times):11.1f}{longest:12.1f}{max(all_times):10.1f}"
        print(f"{name:36}{figures}{'' if is_bounded else '   <- too long'}")
    return is_within


if __name__ == "__main__":
    sys.exit(main())
