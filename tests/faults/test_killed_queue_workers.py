"""Processes of a queue are killed, frozen and cut off; servers are killed, filled up and emptied. Nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import penstock
from penstock import sync
from penstock.errors import OutOfMemory, TransientError
from penstock.redis.embedded import EmbeddedServer
from penstock.sync.queue.consumer_slots import ConsumerSlots
from tests.faults.queue_worker import CODE
from tests.faults.waiting import eventually
from tests.faults.worker_process import WorkerProcess
from tests.helpers.ageing import LEASE_MS, Ageing

QUEUE, COMPLETED, DEAD = "orders", "orders::completed", "orders::dlq"
LEASE_S = 2.0


class QueueWorkers:
    """The processes of one test, and the queue that they serve."""

    def __init__(self, url: str, raw: redis.Redis, folder: Path, half: str) -> None:
        self.url, self.raw, self._folder, self._half = url, raw, folder, half
        self.gate = folder / "gate"
        self.workers: list[WorkerProcess] = []
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self.queue = sync.RedisMessageQueue(QUEUE, client=self._client, enable_completed_queue=True)

    def worker(self, **job: Any) -> WorkerProcess:
        """Starts a process and returns it when it is ready."""
        given = {"url": self.url, "half": self._half, "lease_s": LEASE_S, "gate": str(self.gate), **job}
        log = self._folder / f"worker-{len(self.workers)}.log"
        self.workers.append(WorkerProcess(given, log, "tests.faults.queue_worker"))
        self.workers[-1].wait_for("ready")
        return self.workers[-1]

    def completed(self) -> list[str]:
        return sorted(fields[b"data"].decode() for _, fields in self.raw.xrange(COMPLETED))

    def wait_until_done(self, messages: list[str]) -> None:
        """Waits until these, each once, are done, and nothing is left."""
        story = lambda: "\n".join(worker.story() for worker in self.workers)  # noqa: E731
        eventually(lambda: self.completed() == sorted(messages), "all is done", story=story)
        stats = self.queue.stats()
        assert (stats.pending, stats.processing, stats.retrying, stats.dead_letter) == (0, 0, 0, 0)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.queue.close()
        self._client.close()


@pytest.fixture
def workers_on(tmp_path: Path, half: str) -> Iterator[Callable[[EmbeddedServer], QueueWorkers]]:
    made: list[QueueWorkers] = []

    def make(server: EmbeddedServer) -> QueueWorkers:
        made.append(
            QueueWorkers(server.url, redis.Redis(unix_socket_path=server.unix_socket, protocol=2), tmp_path, half)
        )
        return made[-1]

    yield make
    for group in made:
        group.close()
        group.raw.close()


@pytest.fixture
def group(workers_on: Callable[[EmbeddedServer], QueueWorkers], server: EmbeddedServer) -> QueueWorkers:
    return workers_on(server)


# --- processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beat_s", [None, 0.2])
def test_what_a_killed_process_held_is_done_by_another(group: QueueWorkers, beat_s: float | None) -> None:
    group.queue.publish("hold")
    group.worker(beat_s=beat_s).wait_for("began")
    group.queue.publish("other")
    group.workers[0].kill()
    group.gate.touch()
    heir = group.worker(beat_s=beat_s)
    assert heir.wait_for("began", message="hold")["number"] == 2
    group.wait_until_done(["hold", "other"])


@pytest.mark.usefixtures("default_server")
def test_a_message_that_kills_its_process_ends_in_the_dead_letters(group: QueueWorkers) -> None:
    group.queue.publish("hold")
    for number in (1, 2):
        worker = group.worker(most=2)
        assert worker.wait_for("began")["number"] == number
        worker.kill()
    group.worker(most=2)
    eventually(lambda: group.raw.xlen(DEAD), "it is dead")
    assert group.queue.stats().processing == 0
    assert group.queue.publish("hold")  # the producer's retry is welcome


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("message", "code", "error"), [("exit", CODE, "WorkerDied"), ("leave", CODE, "SystemExit"), ("burst", 1, "Burst")]
)
def test_a_handler_that_ends_its_process_is_given_up_with_its_reason(
    group: QueueWorkers, message: str, code: int, error: str
) -> None:
    group.queue.publish(message)
    for number in (1, 2):
        worker = group.worker(most=2)
        assert worker.wait_for("began", message=message)["number"] == number
        assert worker.wait() == code
    group.queue.publish("other")
    group.worker(most=2)
    eventually(lambda: group.completed() == ["other"], "its neighbour is done")
    eventually(lambda: group.raw.xlen(DEAD), "it is dead")
    [(_, record)] = group.raw.xrange(DEAD)
    told = [record[name].decode() for name in (b"data", b"dlq_reason", b"dlq_error", b"dlq_attempts")]
    assert told == [message, "max_deliveries", error, "2"]
    assert not group.workers[-1].said("began", message=message)


def test_a_frozen_process_can_settle_nothing_when_it_wakes_up(group: QueueWorkers) -> None:
    group.queue.publish("hold")
    frozen = group.worker(beat_s=0.2)
    frozen.wait_for("began")
    frozen.freeze()
    heir = group.worker(beat_s=0.2)
    assert heir.wait_for("began")["number"] == 2
    group.gate.touch()
    assert not heir.wait_for("ended")["lease_lost"]
    frozen.thaw()
    assert frozen.wait_for("ended")["lease_lost"]
    group.wait_until_done(["hold"])


def test_a_living_process_keeps_its_message_whoever_else_is_there(group: QueueWorkers) -> None:
    group.queue.publish("hold")
    holder = group.worker(beat_s=0.1, lease_s=LEASE_MS / 1000)
    holder.wait_for("began")
    rival = group.worker(beat_s=0.1, lease_s=LEASE_MS / 1000)
    leases = Ageing(group.raw, QUEUE, "queue")
    for _ in range(3):
        leases.age()
        eventually(leases.is_renewed, "the lease is renewed", story=holder.story)
    assert rival.said("began") == []
    group.gate.touch()
    group.wait_until_done(["hold"])


@pytest.mark.usefixtures("default_server")
def test_a_forked_process_has_slots_of_its_own(server: EmbeddedServer, raw: redis.Redis) -> None:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    queue = sync.RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=60)
    for message in ("a", "b", "c"):
        queue.publish(message)
    with queue.process_message() as message:
        assert message == "a"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with queue.process_message() as own:
                    code = 0 if own == "b" else 2
                code = code if queue.publish("d") else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        holders = {row["consumer"] for row in raw.xpending_range(QUEUE, "queue", "-", "+", 10)}
        assert len(holders) == 1
    assert [fields[b"data"] for _, fields in raw.xrange(QUEUE)] == [b"c", b"d"]
    with queue.process_message() as message:
        assert message == "c"
    queue.close()
    client.close()


@pytest.mark.usefixtures("default_server")
def test_a_forked_process_that_closes_the_queue_leaves_the_messages_of_its_parent_alone(
    server: EmbeddedServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerSlots, "_watch", lambda _self: None)
    client = redis.Redis.from_url(server.url, decode_responses=True)
    gateway = sync.RedisGateway(redis_client=client, message_visibility_timeout_seconds=60)
    gateway._consumer_of(QUEUE)._take_ahead_after = 0
    queue = sync.RedisMessageQueue(QUEUE, gateway=gateway)
    for message in ("a", "b"):
        queue.publish(message)
    with queue.process_message() as message:
        assert message == "a"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert raw.zcard(f"{{{QUEUE}}}:retries:queue") == 0
    with queue.process_message() as message:
        assert message == "b"
    queue.close()
    client.close()


# --- servers ----------------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_comes_back_has_lost_nothing(
    workers_on: Callable[[EmbeddedServer], QueueWorkers], start_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = start_server(directory=tmp_path / "data", port=0, options={"appendfsync": "always"})
    group = workers_on(server)
    group.queue.publish("hold")
    worker = group.worker(beat_s=0.2)
    worker.wait_for("began")
    group.queue.publish("other")
    server.kill()
    server.restart()
    group.gate.touch()
    for message in ("after", "hold"):
        eventually(lambda message=message: _published(group, message), "the server answers")
    eventually(lambda: group.completed() == ["after", "hold", "other"], "all is done", story=worker.story)
    assert len(worker.said("began")) <= 4


def _published(group: QueueWorkers, message: str) -> bool:
    try:
        group.queue.publish(message)
    except TransientError:
        return False
    return True


@pytest.mark.parametrize("how", ["destroyed", "flushed"])
def test_a_group_that_vanishes_is_made_again(group: QueueWorkers, how: str) -> None:
    worker = group.worker()
    group.queue.publish("before")
    group.wait_until_done(["before"])
    if how == "destroyed":
        group.raw.xgroup_destroy(QUEUE, "queue")
    else:
        group.raw.flushall()
        group.raw.script_flush()
    group.queue.publish("after")
    eventually(lambda: "after" in group.completed(), "it is done", story=worker.story)


@pytest.mark.usefixtures("default_server")
def test_what_waited_when_the_group_vanished_has_one_holder(server: EmbeddedServer, raw: redis.Redis) -> None:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    queue = sync.RedisMessageQueue(QUEUE, client=client, retry_delay_seconds=0.3, max_retry_delay_seconds=0.3)
    queue.publish("a")
    with pytest.raises(ValueError, match="failed"), queue.process_message():
        raise ValueError("failed")
    raw.xgroup_destroy(QUEUE, "queue")
    processing = queue.process_message()
    with processing as message:
        assert message == "a"
        with queue.process_message() as other:  # longer than the delay
            assert other is None
    assert not processing.lease_lost
    queue.close()
    client.close()


def test_a_full_server_is_drained(server: EmbeddedServer, raw: redis.Redis, half: str) -> None:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    options: dict[str, Any] = {"visibility_timeout_seconds": 60, "enable_completed_queue": True}
    queue = sync.RedisMessageQueue(QUEUE, client=client, **options)
    for number in range(6):
        queue.publish(f"{number}")
    stuck = queue.process_message()
    stuck.__enter__()
    retried = queue.process_message()
    retried.__enter__()
    retried.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemory):
            queue.publish("more")
        assert queue._gateway.renew_message_lease(QUEUE, "0", str(stuck.lease_token))
        for row in raw.xpending_range(QUEUE, "queue", "-", "+", 10):
            raw.xclaim(QUEUE, "queue", row["consumer"], 0, [row["message_id"]], idle=120_000, justid=True)
        drain = _drain_sync if half == "sync" else _drain_async
        assert sorted(drain(server.url, options)) == ["0", "1", "2", "3", "4", "5"]
    finally:
        raw.config_set("maxmemory", 0)
    assert raw.xlen(QUEUE) == 0
    assert raw.xlen(COMPLETED) == 6
    queue.close()
    client.close()


def _drain_sync(url: str, options: dict[str, Any]) -> list[str]:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        queue, done = sync.RedisMessageQueue(QUEUE, client=client, **options), []
        while len(done) < 6:
            with queue.process_message() as message:
                if message is not None:
                    done.append(str(message))
        queue.close()
        return done


def _drain_async(url: str, options: dict[str, Any]) -> list[str]:
    async def drain() -> list[str]:
        done: list[str] = []
        async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
            queue = penstock.RedisMessageQueue(QUEUE, client=client, **options)
            while len(done) < 6:
                async with queue.process_message() as message:
                    if message is not None:
                        done.append(str(message))
            await queue.close()
        return done

    return asyncio.run(drain())
