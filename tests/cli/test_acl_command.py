"""`penstock acl`: under the rights that it prints each role does its work, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock import JsonSerializer, OwnedStream, StreamBalancer, StreamClient
from penstock.errors import ConfigurationError, FatalError, PermissionDenied
from penstock.ops.rights import Place, RoleName, as_line, commands_of, rights_of
from penstock.redis.embedded import EmbeddedServer
from penstock.redis.probe import ask
from penstock.spark.format.stream_reader import StreamReader
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import RowBuilder
from penstock.sync import (
    ConsumerConfig,
    ConsumerGroup,
    DeadLetters,
    RedisMessageQueue,
    StreamConsumer,
    StreamMessage,
    StreamProducer,
)
from penstock.sync import StreamClient as SyncClient
from penstock.sync.ops import Inspector, Sampler
from penstock.sync.tasks import Handlers, Priority, RedisTaskQueue, Retry, Task, Worker
from penstock.testing import Cluster
from tests.cli.conftest import Command
from tests.helpers.users import refused
from tests.spark.sink.rows import batch, options, write

As = Callable[..., str]


@pytest.fixture
def as_user(redis_url: str, raw: redis.Redis, penstock: Command) -> Iterator[As]:
    """Makes a user with the rights that the command prints; returns a URL that logs it in."""

    def make(role: str, *words: str) -> str:
        line = penstock("acl", "--role", role, "--user", "shop", *words).stdout
        raw.execute_command(*shlex.split(line), ">secret")
        raw.execute_command("ACL", "LOG", "RESET")
        return redis_url.replace("unix://", "unix://shop:secret@")

    yield make
    raw.execute_command("ACL", "DELUSER", "shop")


@pytest.fixture
def check(server: EmbeddedServer) -> Callable[[str], None]:
    """Checks that nothing was refused that a role needs, and that everything else is."""

    def check(url: str) -> None:
        assert refused(server) == []
        with SyncClient.from_url(url) as client:
            for words in (
                ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "save", ""), ("DEL", "others"), ("ACL", "LIST"),
                ("XADD", "others", "*", "data", "1"), ("XRANGE", "others", "-", "+"), ("GET", "{others}:dedup:a"),
                ("XGROUP", "DESTROY", "others", "workers"), ("CLIENT", "KILL", "TYPE", "normal"),
            ):  # fmt: skip
                with pytest.raises(PermissionDenied):
                    client.call("others", *words)

    return check


Check = Callable[[str], None]


def test_a_producer_publishes_and_reads_nothing(as_user: As, check: Check, raw: redis.Redis) -> None:
    url = as_user("producer", "--stream", "orders")
    raw.xadd("orders", {"data": "a finished one"})
    raw.xgroup_create("orders", "workers", "$")
    with SyncClient.from_url(url, client_name="shop") as client:
        producer = StreamProducer(client, "orders", "workers", max_len=4)
        producer.push_many([1, 2, 3])
        producer.push(4, dedup_key="once", headers={"lang": "de"})
        producer.push(4, dedup_key="once")
        with pytest.raises(PermissionDenied):
            client.call("orders", "XREADGROUP", "GROUP", "workers", "me", "STREAMS", "orders", ">")
    raw.execute_command("ACL", "LOG", "RESET")
    check(url)


def test_a_worker_consumes_retries_recovers_and_gives_up(as_user: As, check: Check, raw: redis.Redis) -> None:
    raw.xgroup_create("orders", "workers", "0", mkstream=True)
    for text in ('"orphan"', '"good"', '"bad"'):
        raw.xadd("orders", {"data": text})
    raw.xreadgroup("workers", "ghost", {"orders": ">"}, count=1)
    url = as_user("worker", "--stream", "orders")
    seen: list[object] = []

    def handle(message: StreamMessage) -> None:
        seen.append(message.data)
        if message.data == "bad":
            raise ValueError("bad")
        stop_when_done()

    def stop_when_done(*_: object) -> None:
        if consumer.metrics().total_dlq and {"orphan", "good"} <= {*map(str, seen)}:
            consumer.stop()

    config = ConsumerConfig(
        group="workers", worker_name="one", min_idle_claim_ms=200, block_ms=50, retry_initial_delay_ms=10,
        max_deliveries=2, retention_interval_ms=1,
    )  # fmt: skip
    with SyncClient.from_url(url) as client:
        consumer = StreamConsumer(client, "orders", config, message_handler=handle, dlq_handler=stop_when_done)
        consumer.run()
        group = ConsumerGroup(client, "orders", "workers")
        assert group.lag().count == 0
        letters = DeadLetters(client, "orders")
        assert letters.count() == 1
        letters.redrive()
    assert {*map(str, seen)} == {"orphan", "good", "bad"}
    check(url)


def test_a_message_queue_is_used_by_a_worker(as_user: As, check: Check) -> None:
    url = as_user("worker", "--stream", "jobs", "--stream", "orders")
    with SyncClient.from_url(url) as client:
        queue = RedisMessageQueue(
            "jobs", client=client, enable_completed_queue=True, enable_failed_queue=True, max_delivery_count=2,
            retry_delay_seconds=0.001, max_retry_delay_seconds=0.001, visibility_timeout_seconds=60,
            max_pending_length=2, pending_overload_policy="drop_oldest",
        )  # fmt: skip
        for text in ("dropped", "bad", "good"):
            queue.publish(text)
        while queue.stats().pending or queue.stats().retrying:
            with contextlib.suppress(ValueError), queue.process_message() as message:
                if message == "bad":
                    raise ValueError(message)
        for source in ("pending", "processing", "retrying", "completed", "failed", "dead_letter"):
            queue.peek(source=source)  # type: ignore[arg-type]
        assert queue.redrive_dead_letters() == 1
        for target in ("pending", "completed", "failed", "dead_letter"):
            queue.purge(target=target)  # type: ignore[arg-type]
        queue.close()
    check(url)


def test_tasks_are_sent_done_limited_and_given_up(as_user: As, check: Check, raw: redis.Redis) -> None:
    handlers = Handlers()

    @handlers.task("good", max_concurrency=1, rate="1000/s")
    def good(task: Task) -> int:
        return 1

    @handlers.task("bad", retry=Retry(max_attempts=2, initial_delay_ms=1))
    def bad(task: Task) -> None:
        raise ValueError("bad")

    @handlers.task("fatal")
    def fatal(task: Task) -> None:
        raise FatalError("no use")

    url = as_user("tasks", "--queue", "shop")
    with RedisTaskQueue(url, "shop", idle_ms=200) as queue:
        queue.enqueue(Task(kind="good"))
        held = queue.pop()
        assert held is not None
        queue.extend(held.id)
        queue.nack(held.id)
        queue.enqueue_many([Task(kind="bad"), Task(kind="fatal"), Task(kind="good", priority=Priority.HIGH)])
        queue.enqueue(Task(kind="good", requires=frozenset({"gpu"}), unique="u"), delay=0.001)
        Worker(queue, handlers, concurrency=2, burst=True, provides={"gpu"}).run()
        queue.requeue_orphans(1)
        result = queue.wait_for_result(held.id, 30)
        assert result is not None
        assert queue.wait_for_result("never", 0.05) is None
        queue.gauges(), queue.list_tasks(), queue.list_pending()
        [*letters] = queue.dead.iterate()
        assert queue.dead.redrive([letters[0].id]) == [letters[0].task_id]
        queue.dead.purge([letters[-1].id])
    check(url)


async def test_streams_are_shared_out(as_user: As, check: Check, raw: redis.Redis, server: EmbeddedServer) -> None:
    url = as_user("balancer", "--service", "billing", "--stream", "session-1")
    raw.xadd("billing-input", {"lbs-input": "no json"})
    raw.xadd("session-1", {"data": "no json"})
    raw.xadd("session-1", {"data": "1"})
    async with StreamClient.from_url(url) as client:
        first = StreamBalancer(client, "billing", id="first")
        async with first as notices:
            await first.add_stream("session-1")
            await anext(notices)
        second = StreamBalancer(client, "billing", id="second")

        async def handle(stream: OwnedStream) -> None:
            async for message in stream:
                await stream.commit(message)
                second.stop()
                return

        await second.run(handle, serializer=JsonSerializer())
    assert raw.xlen("{billing-input}_dlq") == 1
    assert raw.xlen("session-1_dlq") == 1
    assert {*refused(server)} <= {"config", "config|get", "config|set"}, "these are for hints alone"
    raw.execute_command("ACL", "LOG", "RESET")
    check(url)


def test_spark_reads_follows_and_writes(as_user: As, check: Check, raw: redis.Redis) -> None:
    ids = [raw.xadd("orders", {"data": str(number)}).decode() for number in range(10)]
    url = as_user("spark", "--stream", "orders", "--stream", "out")
    given = {"url": url, "streams": "orders", "startingOffsets": "earliest", "group": "lake"}
    reader = StreamReader(SourceOptions.parse(given), RowBuilder(pa.schema([("id", pa.string())])))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    batches = itertools.chain.from_iterable(reader.read(partition) for partition in reader.partitions(start, end))
    assert [row["id"] for found in batches for row in found.to_pylist()] == ids
    reader.commit(end)
    assert [group["name"] for group in raw.xinfo_groups("orders")] == [b"lake"]
    write(options(url, batch([1]), stream="out", maxLen=100), [batch(range(20))])
    assert raw.xlen("out") == 20
    check(url)


def test_a_reader_looks_and_changes_nothing(as_user: As, check: Check, raw: redis.Redis, redis_url: str) -> None:
    raw.xgroup_create("orders", "workers", "0", mkstream=True)
    raw.xadd("orders", {"data": "1"})
    with RedisTaskQueue(redis_url, "shop") as queue:
        queue.enqueue(Task(kind="good"))
    url = as_user("readonly", "--stream", "orders", "--queue", "shop")
    with SyncClient.from_url(url) as client, RedisTaskQueue(url, "shop") as queue:
        group = ConsumerGroup(client, "orders", "workers")
        assert group.lag().count == 1
        assert group.consumers() == []
        assert DeadLetters(client, "orders").list() == []
        assert queue.pending_count() == 1
        assert queue.get_result("none") is None
        assert list(queue.dead.iterate()) == []
        check(url)
        for call in (lambda: StreamProducer(client, "orders").push(1), lambda: queue.enqueue(Task(kind="good"))):
            with pytest.raises(PermissionDenied):
                call()
    assert raw.xlen("orders") == 1


@pytest.mark.parametrize(
    "name",
    [
        "streams/count_range",
        "queue/handed_out",
        "queue/stats",
        "tasks/gauges",
        "queue/unread",
        "ops/snapshot",
        "ops/entries",
        "ops/bodies",
    ],
)
def test_a_reader_may_do_what_the_scripts_that_read_do(name: str) -> None:
    place = Place(streams=("orders",))
    assert commands_of(name) <= rights_of(RoleName.READONLY, place).commands


@pytest.mark.every_server
def test_a_reader_runs_the_exporter(as_user: As, server: EmbeddedServer, raw: redis.Redis, redis_url: str) -> None:
    pytest.importorskip("prometheus_client")
    from penstock.sync.ops.metrics import InspectorCollector

    url = as_user("readonly", "--stream", "*")
    with Inspector.from_url(url) as inspector, RedisTaskQueue(redis_url, "shop") as queue:
        sampler = Sampler(inspector)

        def scrape() -> dict[tuple[str, ...], float]:
            sampler.sample()
            families = InspectorCollector(sampler).collect()
            return {
                (sample.name, *sample.labels.values()): sample.value for found in families for sample in found.samples
            }

        assert scrape()["penstock_up",] == 1
        assert raw.keys() == []
        queue.enqueue(Task(kind="good"))
        assert scrape()["queue_pending_total", "shop.tasks", "good"] == 1
    assert set(refused(server)) <= {"config", "config|get"}  # it does without


@pytest.mark.every_server
def test_every_server_takes_the_line_online_and_offline(penstock: Command, server: EmbeddedServer) -> None:
    where = ("--stream", "orders:*", "--queue", "shop", "--service", "billing")
    [has_waitaof] = ask(server.unix_socket, "COMMAND", "INFO", "WAITAOF")  # type: ignore[misc]
    for role in RoleName:
        online = penstock("acl", "--role", role.value, *where).stdout
        offline = penstock("acl", "--role", role.value, *where, "--offline").stdout
        for line in (online, offline):
            assert ask(server.unix_socket, *shlex.split(line)) == b"OK"
        assert ("+waitaof" in online) == bool(has_waitaof and "+wait" in online)
        assert "+waitaof" not in offline
        assert ask(server.unix_socket, "ACL", "DELUSER", f"penstock-{role.value}") == 1


def test_a_role_in_a_cluster_finds_its_server(cluster: Cluster) -> None:
    place = Place(streams=("{orders}",), is_cluster=True)
    rules = rights_of(RoleName.WORKER, place)
    for host, port in cluster.addresses:
        with redis.Redis(host, port) as node:
            node.execute_command("ACL", "SETUSER", "shop", ">secret", *rules.rules(rules.command_names))
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    try:
        with SyncClient.from_url(url, username="shop", password="secret") as client:
            StreamProducer(client, "{orders}").push(1)
            ConsumerGroup(client, "{orders}", "workers").ensure()
            assert ConsumerGroup(client, "{orders}", "workers").lag().count == 1
    finally:
        for host, port in cluster.addresses:
            with redis.Redis(host, port) as node:
                node.execute_command("ACL", "DELUSER", "shop")


# What each role must not do to keys that it may use; `check` has what no role may do.
FORBIDDEN: dict[RoleName, list[tuple[str, ...]]] = {
    RoleName.PRODUCER: [
        ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "orders", ">"), ("XREAD", "STREAMS", "orders", "0"),
        ("XACK", "orders", "workers", "1-0"), ("XCLAIM", "orders", "workers", "me", "0", "1-0"), ("DEL", "orders"),
        ("XGROUP", "CREATE", "orders", "mine", "0"), ("XGROUP", "SETID", "orders", "workers", "$"),
        ("XRANGE", "orders_dlq", "-", "+"),
    ],
    RoleName.WORKER: [("XGROUP", "SETID", "orders", "workers", "$"), ("RENAME", "orders", "orders_dlq"), ("SCAN", "0")],
    RoleName.TASKS: [
        ("XGROUP", "SETID", "shop.tasks", "shop", "$"), ("XADD", "orders", "*", "data", "1"), ("SCAN", "0"),
    ],
    RoleName.BALANCER: [
        ("XGROUP", "SETID", "billing-input", "billing-group", "$"), ("PUBLISH", "__keyevent@0__:expired", "session-1"),
        ("XREAD", "STREAMS", "orders", "0"), ("SCAN", "0"),
    ],
    RoleName.SPARK: [
        ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "orders", ">"), ("XACK", "orders", "workers", "1-0"),
        ("DEL", "orders"), ("SCAN", "0"),
    ],
    RoleName.READONLY: [
        ("XADD", "orders", "*", "data", "1"), ("XTRIM", "orders", "MAXLEN", "0"), ("DEL", "orders"), ("SET", "orders", "1"),
        ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "orders", ">"), ("XACK", "orders", "workers", "1-0"),
        ("XGROUP", "CREATE", "orders", "mine", "0"), ("EVAL", "return redis.call('DEL', KEYS[1])", "1", "orders"),
    ],
    RoleName.OPERATOR: [
        ("XADD", "elsewhere", "*", "data", "1"), ("RENAME", "orders", "orders_dlq"), ("KEYS", "*"),
        ("XREAD", "STREAMS", "elsewhere", "0"), ("ACL", "LIST"),
    ],
}  # fmt: skip


@pytest.mark.every_server
@pytest.mark.parametrize("role", list(RoleName))
def test_a_role_cannot_do_what_is_for_others(role: RoleName, as_user: As, check: Check, raw: redis.Redis) -> None:
    raw.xgroup_create("orders", "workers", "0", mkstream=True)
    raw.xadd("orders", {"data": "1"}, id="1-0")
    where = {
        RoleName.TASKS: ("--queue", "shop"), RoleName.BALANCER: ("--service", "billing", "--stream", "session-*")
    }.get(role, ("--stream", "orders"))  # fmt: skip
    url = as_user(role.value, *where)
    with SyncClient.from_url(url) as client:
        of_operators = [] if role is RoleName.OPERATOR else [("XGROUP", "DESTROY", "orders", "workers")]
        of_nobody = [("EVAL", "return redis.call('FLUSHALL')", "0"), ("CONFIG", "GET", "*")]
        for words in (*FORBIDDEN[role], *of_operators, *of_nobody):
            with pytest.raises(PermissionDenied):
                client.call("orders", *words)
    raw.execute_command("ACL", "LOG", "RESET")
    check(url)
    assert raw.xlen("orders") == 1


@pytest.mark.every_server
@pytest.mark.parametrize(
    "words",
    [("balancer", "--service", "billing"), ("worker", "--stream", "*", "--stream", "b"), ("worker", "--stream", "a b")],
)
def test_every_server_takes_a_line_with_all_keys_or_a_space(
    words: tuple[str, ...], penstock: Command, server: EmbeddedServer
) -> None:
    line = penstock("acl", "--role", *words, "--user", "shop").stdout
    assert ask(server.unix_socket, *shlex.split(line)) == b"OK"
    assert ask(server.unix_socket, "ACL", "DELUSER", "shop") == 1


def test_dead_letters_of_a_name_of_their_own_have_keys_beside_them(as_user: As, check: Check) -> None:
    url = as_user("worker", "--stream", "orders", "--dead-letters", "graveyard")
    with SyncClient.from_url(url) as client:
        ConsumerGroup(client, "orders", "workers").ensure("graveyard", "dead_letter_writers")
    check(url)


@pytest.mark.parametrize("role", list(RoleName))
def test_a_role_without_a_place_is_refused(role: RoleName) -> None:
    with pytest.raises(ConfigurationError, match="name the keys"):
        rights_of(role, Place())


def test_words_are_quoted_as_redis_cli_reads_them() -> None:
    assert as_line(["~a b", "~c", '~d"\\']) == '"~a b" ~c "~d\\"\\\\"'
    assert as_line(["~\x1b\n\u202e"]) == '"~\\x1b\\x0a\\xe2\\x80\\xae"'
