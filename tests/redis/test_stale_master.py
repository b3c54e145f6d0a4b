"""A master that was replaced and does not know it, or stands still: every part leaves it, for others are asked."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from campaign.servers import ReplicatedCluster
from penstock import ConsumerConfig
from penstock.errors import NotDurable
from penstock.redis.embedded import EmbeddedServer
from tests.helpers.threads import eventually
from tests.redis.halves import Half
from tests.redis.sentinels import SentinelGroup, told

LEASE_MS = 8_000  # longer than it takes to leave the old master
TAG = "{o}"  # of all keys: of the master that is replaced


class Servers(Protocol):
    """Servers of which one has all keys of these tests, and others that can take over."""

    @property
    def url(self) -> str: ...

    def master(self) -> EmbeddedServer: ...

    def fail_over(self) -> EmbeddedServer: ...

    def is_left(self, stale: EmbeddedServer) -> bool: ...


class BehindSentinels:
    """The master lives on, and never learns that another one was promoted."""

    def __init__(self, group: SentinelGroup) -> None:
        self._group, self.url, self.master = group, group.url, group.master

    def fail_over(self) -> EmbeddedServer:
        eventually(lambda: len({_offset(server) for server in self._group.servers}) == 1)
        return self._group.fail_over_unnoticed()

    def is_left(self, stale: EmbeddedServer) -> bool:
        return _is_left(stale)


class InACluster:
    """The master stands still until its replica has taken over, and the test asks it who is connected."""

    def __init__(self, nodes: ReplicatedCluster) -> None:
        self._nodes, self.url = nodes, nodes.url

    def master(self) -> EmbeddedServer:
        found = self._nodes.owner(TAG)
        assert found is not None
        return found

    def fail_over(self) -> EmbeddedServer:
        stale = self.master()
        self._nodes.freeze(stale)
        eventually(lambda: self._nodes.owner(TAG) not in (stale, None))
        return stale

    def is_left(self, stale: EmbeddedServer) -> bool:
        self._nodes.thaw()
        return _is_left(stale)


def _is_left(server: EmbeddedServer) -> bool:
    return b"name=part" not in told(server.unix_socket, "CLIENT", "LIST")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup(tmp_path) as made:
        yield made


class Scene:
    """A part at work, its client named after it, and the servers to look at."""

    def __init__(self, half: Half, servers: Servers) -> None:
        self.half, self.servers = half, servers
        self.client = half.client(servers.url, client_name="part")
        self.stale: EmbeddedServer | None = None

    def fail_over(self) -> None:
        """Has the master replaced when the replica has everything."""
        self.stale = self.servers.fail_over()

    def master(self, *command: Any) -> Any:
        """Asks the master that the others name."""
        return told(self.servers.master().unix_socket, *command)

    def is_left(self) -> bool:
        """Tells whether no connection to the stale master is open."""
        assert self.stale is not None
        return self.servers.is_left(self.stale)

    def is_renewed(self, stream: str, group: str) -> None:
        """Waits until a lease was renewed at the new master: it is younger than it was a moment before."""
        oldest_ms = 0

        def is_younger() -> bool:
            nonlocal oldest_ms
            idle_ms = int(self.master("XPENDING", stream, group, "-", "+", 1)[0][2])
            oldest_ms = max(oldest_ms, idle_ms)
            return idle_ms < oldest_ms

        eventually(is_younger)

    def run(self, consumer: Any) -> Any:
        return self.half.start(consumer.run)


@pytest.fixture(params=["sentinels", "cluster"])
def scene(request: pytest.FixtureRequest, half: Half, tmp_path: Path) -> Iterator[Scene]:
    if request.param == "sentinels":
        with SentinelGroup(tmp_path) as group:
            yield Scene(half, BehindSentinels(group))
    else:
        with ReplicatedCluster() as nodes:
            yield Scene(half, InACluster(nodes))


def _offset(server: EmbeddedServer) -> bytes:
    info = dict(line.split(b":", 1) for line in told(server.unix_socket, "INFO", "replication").split() if b":" in line)
    return bytes(info[b"master_repl_offset"])


def _config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(
        group="g",
        min_idle_claim_ms=LEASE_MS,
        heartbeat_interval_ms=300,
        block_ms=60_000,
        handle_signals=False,
        **settings,
    )  # a read at the old master would wait there for a minute


@pytest.mark.parametrize("durability", ["fast", "replicated"])
def test_a_producer(scene: Scene, durability: str) -> None:
    # Of the two servers one is cut off: nothing can be confirmed. What matters is where it was written.
    producer = scene.half.api.StreamProducer(scene.client, f"{TAG}s", durability=durability, durability_timeout_ms=50)
    with suppress(NotDurable):
        scene.half.do(producer.push, "before")
    scene.fail_over()
    before = scene.master("XLEN", f"{TAG}s")

    def arrives() -> bool:
        with suppress(NotDurable):
            scene.half.do(producer.push, "after")
        return bool(scene.master("XLEN", f"{TAG}s") > before)

    eventually(arrives)
    eventually(scene.is_left)


def test_a_consumer_and_its_heartbeat(scene: Scene) -> None:
    handled: list[Any] = []
    may_end = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.data)
        assert message.data != "long" or may_end.wait(60)

    half = scene.half
    half.do(half.api.StreamProducer(scene.client, f"{TAG}s").push, "long")
    consumer = half.api.StreamConsumer(scene.client, f"{TAG}s", _config(concurrency=2), message_handler=handle)
    running = scene.run(consumer)
    eventually(lambda: handled)
    scene.fail_over()
    scene.master("XADD", f"{TAG}s", "*", "data", '"new"')
    eventually(lambda: "new" in handled)
    scene.is_renewed(f"{TAG}s", "g")
    eventually(scene.is_left)
    may_end.set()
    eventually(lambda: not scene.master("XPENDING", f"{TAG}s", "g", "-", "+", 1))
    half.do(consumer.stop)
    running.result(30)
    assert handled == ["long", "new"]


def test_a_queue_and_its_heartbeat(scene: Scene) -> None:
    half, lost = scene.half, list[int]()
    enter, leave = ("__aenter__", "__aexit__") if half.name == "async" else ("__enter__", "__exit__")
    queue = half.do(
        lambda: half.api.RedisMessageQueue(
            f"{TAG}q", client=scene.client, visibility_timeout_seconds=60, heartbeat_interval_seconds=0.3,
            on_heartbeat_failure=lambda: lost.append(1),
        )
    )  # fmt: skip

    def take() -> tuple[Any, Any]:
        while True:
            processing = queue.process_message()
            message = half.do(getattr(processing, enter))
            if message is not None:
                return processing, message

    half.do(queue.publish, "long")
    long, _ = take()
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(take()), daemon=True)
    thread.start()
    scene.fail_over()
    scene.is_renewed(f"{TAG}q", "queue")
    eventually(scene.is_left)
    assert half.do(queue.publish, "new")
    thread.join(30)
    for processing, message in [(long, b"long"), *waiting]:
        assert message in (b"long", b"new", "new")
        half.do(getattr(processing, leave), None, None, None)
    assert len(waiting) == 1
    assert lost == []
    assert half.do(queue.stats).processing == 0
    half.do(queue.close)


def test_a_task_worker_and_its_heartbeat(scene: Scene) -> None:
    half = scene.half
    api = importlib.import_module(f"{half.api.__name__}.tasks")
    queue = api.RedisTaskQueue(scene.client, name=f"{TAG}t")
    handlers, begun, may_end = api.Handlers(), threading.Event(), threading.Event()

    @handlers.task("long")
    def wait(_: Any) -> None:
        begun.set()
        assert may_end.wait(60)

    @handlers.task("short")
    def answer(_: Any) -> int:
        return 1

    worker = api.Worker(queue, handlers, handle_signals=False, idle_ms=LEASE_MS, concurrency=2)
    long, short = api.Task(kind="long"), api.Task(kind="short")
    half.do(queue.enqueue, long)
    running = scene.run(worker)
    assert begun.wait(30)
    scene.fail_over()
    scene.is_renewed(f"{TAG}t.tasks", f"{TAG}t")
    eventually(scene.is_left)
    half.do(queue.enqueue, short)
    assert half.do(queue.wait_for_result, short.id, 30).data == 1
    may_end.set()
    assert half.do(queue.wait_for_result, long.id, 30).attempts == 1
    worker.stop()
    running.result(30)
    half.do(queue.close)


def test_a_balancer_and_its_heartbeat(scene: Scene) -> None:
    half, owned = scene.half, list[str]()
    quick = {"heartbeat_interval_ms": 100, "lease_ms": 60_000, "lbs_idle_time": 120}
    balancer = half.do(lambda: half.api.StreamBalancer(scene.client, f"{TAG}svc", id="me", **quick))
    notices = half.do(balancer.__aenter__ if half.name == "async" else balancer.__enter__)

    def follow() -> None:
        with suppress(StopAsyncIteration, StopIteration, CancelledError):
            while True:
                notice = half.start(notices.__anext__ if half.name == "async" else notices.__next__).result()
                if notice.payload is not None:
                    owned.append(notice.payload.data_stream_name)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    half.do(balancer.add_stream, f"{TAG}first")
    eventually(lambda: owned == [f"{TAG}first"])
    scene.fail_over()
    lock = next(key for key in scene.master("KEYS", "*") if key.startswith(f"{TAG}first".encode()))
    eventually(scene.is_left)
    assert scene.master("PEXPIRE", lock, 10_000) == 1
    eventually(lambda: scene.master("PTTL", lock) > 30_000)
    eventually(lambda: b"cmd=psubscribe" in scene.master("CLIENT", "LIST"))  # hints come from there, too
    half.do(balancer.add_stream, f"{TAG}second")
    eventually(lambda: owned == [f"{TAG}first", f"{TAG}second"])
    half.do(balancer.done)
    following.join(30)


def test_a_call_that_connects_to_a_frozen_master_is_sent_to_the_one_that_replaces_it(scene: Scene) -> None:
    frozen = scene.servers.master()
    question = (TAG, "EXISTS", TAG)
    assert scene.half.do(scene.client.call, *question) == 0
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        late = scene.half.client(scene.servers.url, socket_connect_timeout=600)
        pushing = scene.half.start(scene.half.api.StreamProducer(late, f"{TAG}s").push, "first")
        connecting = scene.half.start(late.call, *question)
        asking = scene.half.start(scene.client.call, *question)  # on a connection that is open
        assert connecting.result(60) == 0
        assert asking.result(60) == 0
        assert pushing.result(60)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


def test_whoever_rests_between_two_tries_goes_on_when_another_server_is_the_master(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.redis.master_watch._RECENT_S", 600.0)  # however slow the machine
    half, client = scene.half, scene.client
    assert half.do(client.call, TAG, "EXISTS", TAG) == 0
    resting = half.start(client.rest, 600)
    scene.fail_over()
    resting.result(60)
    half.start(client.rest, 600).result(60)  # its failure came a moment before the change was known


def test_a_rest_without_a_change_is_as_long_as_was_asked_for(half: Half, group: SentinelGroup) -> None:
    client = half.client(group.url)
    began_s = time.monotonic()
    half.do(client.rest, 0.3)
    assert time.monotonic() - began_s >= 0.3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_process_watches_by_itself(group: SentinelGroup) -> None:
    script = f"""
import os, sys
from penstock.sync import StreamClient
parent = StreamClient.from_url({group.url!r})
assert parent.ping()
child = os.fork()
client = parent if child else StreamClient.from_url({group.url!r})
assert client.ping()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
