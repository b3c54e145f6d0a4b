"""Queues in a cluster and behind Sentinels: names are checked early, and moves and failovers are not noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from penstock.errors import ClusterSlotError, ConfigurationTypeError, FatalError
from penstock.testing import Cluster
from tests.helpers.threads import eventually
from tests.redis.halves import Half
from tests.redis.sentinels import SERVICE, SentinelGroup
from tests.redis.slots import SlotMove

QUEUE = "{orders}"


class Wrapper:
    """A client in a client, as tracing libraries have them."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Line:
    """A queue whose messages are published and processed by hand."""

    def __init__(self, half: Half, queue: Any) -> None:
        self.half, self.queue = half, queue
        self._enter, self._exit = ("__aenter__", "__aexit__") if half.name == "async" else ("__enter__", "__exit__")

    def publish(self, message: str) -> bool:
        return bool(self.half.do(self.queue.publish, message))

    def take(self) -> Any:
        """Takes the next message, which must come."""

        def take() -> Any:
            processing = self.queue.process_message()
            text = self.half.do(getattr(processing, self._enter))
            return None if text is None else (processing, text)

        return eventually(take)

    def end(self, processing: Any, error: BaseException | None = None) -> None:
        self.half.do(getattr(processing, self._exit), type(error) if error else None, error, None)


def cluster_client(half: Half, cluster: Cluster) -> Any:
    host, port = cluster.addresses[0]
    if half.name == "sync":
        return half.owned(redis.RedisCluster(host=host, port=port, decode_responses=True))
    made = half.do(lambda: redis.asyncio.RedisCluster(host=host, port=port, decode_responses=True))
    half._closing.append(made.aclose)
    return made


@pytest.fixture(params=["redis-py", "wrapped", "penstock"])
def any_client(request: pytest.FixtureRequest, half: Half, cluster: Cluster) -> Any:
    if request.param == "penstock":
        return half.client("redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses))
    client = cluster_client(half, cluster)
    return Wrapper(client) if request.param == "wrapped" else client


# --- cluster ----------------------------------------------------------------------------------------


def test_a_name_without_a_hash_tag_is_refused_at_once(half: Half, any_client: Any) -> None:
    with pytest.raises(ClusterSlotError, match=r"'\{orders\}'"):
        half.do(lambda: half.api.RedisMessageQueue("orders", client=any_client))


def test_dead_letters_in_another_slot_are_refused_at_once(half: Half, any_client: Any) -> None:
    def make() -> Any:
        gateway = half.api.RedisGateway(
            redis_client=any_client,
            message_visibility_timeout_seconds=60,
            max_delivery_count=3,
            dead_letter_queue="elsewhere",
        )
        return half.api.RedisMessageQueue(QUEUE, gateway=gateway)

    with pytest.raises(ClusterSlotError, match="dead_letter_queue"):
        half.do(make)


def test_a_client_that_hides_its_servers_is_refused(half: Half) -> None:
    class Hidden:
        async def execute_command(self) -> None: ...

    class HiddenSync:
        def execute_command(self) -> None: ...

    with pytest.raises(ConfigurationTypeError, match="expose its server's address"):
        half.api.RedisMessageQueue(QUEUE, client=Hidden() if half.name == "async" else HiddenSync())


def test_a_queue_works_in_a_cluster(half: Half, any_client: Any) -> None:
    options = {"enable_completed_queue": True, "enable_failed_queue": True, "retry_delay_seconds": 0.01}
    made = half.do(lambda: half.api.RedisMessageQueue(QUEUE, client=any_client, **options))
    line = Line(half, made)
    assert line.publish("a")
    assert not line.publish("a")
    assert line.publish("b")
    for error in (ValueError("failed"), None, None):
        line.end(line.take()[0], error)
    assert line.publish("c")
    line.end(line.take()[0], FatalError("failed"))
    assert half.do(made.redrive_dead_letters) == 1
    processing, message = line.take()
    assert message in ("c", b"c")
    line.end(processing)
    stats = half.do(made.stats)
    assert (stats.pending, stats.processing, stats.retrying, stats.dead_letter) == (0, 0, 0, 0)
    assert (stats.completed, stats.failed) == (3, 2)
    for target in ("completed", "failed", "pending"):
        half.do(made.purge, target=target)
    half.do(made.close)


@pytest.mark.parametrize("budget_s", [60, 0])
def test_a_slot_that_moves_is_not_noticed(half: Half, cluster: Cluster, budget_s: float) -> None:
    client = half.client("redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses))
    gateway = half.api.RedisGateway(
        redis_client=client,
        retry_budget_seconds=max(budget_s, 0),
        message_visibility_timeout_seconds=60,
        message_wait_interval_seconds=0.5,
    )
    line = Line(half, half.api.RedisMessageQueue(QUEUE, gateway=gateway))

    def at_last(step: Any, *args: Any) -> Any:
        # With no budget a call tells that the slot has moved; the next one goes there.
        for _ in range(0 if budget_s else 3):
            try:
                return step(*args)
            except Exception as error:
                assert "MOVED" in repr(error) or "Redirect" in repr(error) or "moved" in str(error), repr(error)  # noqa: PT017
        return step(*args)

    at_last(line.publish, "a")  # the map of a node may be that of the test before
    line.end(line.take()[0])
    for number in range(2):
        line.publish(f"held {number}")
        processing, _ = line.take()
        SlotMove(cluster, QUEUE).begin().finish()
        at_last(line.end, processing)
        assert at_last(line.publish, f"{number}")
        again, message = at_last(line.take)
        assert message == f"{number}"
        line.end(again)
    assert half.do(line.queue.stats).pending == 0
    half.do(line.queue.close)


# --- Sentinel ---------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup(tmp_path, 1) as made:
        yield made


def test_a_queue_goes_on_after_a_failover(half: Half, group: SentinelGroup) -> None:
    if half.name == "sync":
        client = half.owned(redis.sentinel.Sentinel(group.sentinels).master_for(SERVICE, decode_responses=True))
    else:
        client = half.do(
            lambda: redis.asyncio.sentinel.Sentinel(group.sentinels).master_for(SERVICE, decode_responses=True)
        )
        half._closing.append(client.aclose)
    lost: list[int] = []
    queue = half.do(
        lambda: half.api.RedisMessageQueue(
            "orders",
            client=client,
            visibility_timeout_seconds=60,
            heartbeat_interval_seconds=0.2,
            on_heartbeat_failure=lambda: lost.append(1),
        )
    )
    line = Line(half, queue)
    line.publish("a")
    processing, _ = line.take()
    eventually(lambda: all(_pending(server.unix_socket) for server in group.servers))
    waiting = threading.Thread(target=lambda: line.end(line.take()[0]), daemon=True)
    waiting.start()  # and waits on the old master
    group.fail_over()
    line.end(processing)
    assert line.publish("b")
    waiting.join(30)
    assert lost == []
    stats = half.do(queue.stats)
    assert (stats.pending, stats.processing, stats.dead_letter) == (0, 0, 0)
    half.do(queue.close)


def _pending(address: Any) -> list[Any]:
    with redis.Redis(unix_socket_path=address, protocol=2) as raw:
        try:
            return list(raw.xpending_range("orders", "queue", "-", "+", 10))
        except redis.ResponseError:
            return []
