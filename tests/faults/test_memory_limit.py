"""A server at its memory limit: publishing is refused by name, and everything else drains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from penstock import StreamClient
from penstock.errors import OutOfMemory
from penstock.redis.embedded import EmbeddedServer
from tests.faults.checker import body
from tests.faults.conftest import STREAM, Scene
from tests.faults.producers import push
from tests.faults.waiting import eventually


@pytest.fixture
def full(raw: redis.Redis) -> Iterator[Callable[[], None]]:
    """Fills the memory of the server: from then on it refuses whatever would need more."""

    def fill() -> None:
        raw.config_set("maxmemory", 1)

    yield fill
    raw.config_set("maxmemory", 0)


def test_publishing_is_refused_by_name_and_adds_nothing(half: str, scene: Scene, full: Callable[[], None]) -> None:
    ids = scene.publish(body(0))
    full()

    with pytest.raises(OutOfMemory):
        push(half, scene.url, STREAM, body(1))

    assert [row[0].decode() for row in scene.raw.xrange(STREAM)] == ids


def test_running_workers_drain_a_full_server(half: str, scene: Scene, full: Callable[[], None]) -> None:
    gate = scene.gate()
    ids = scene.publish(
        *(body(n, ["until", gate]) for n in range(5)),
        body(5, ["raise", "error"], runs=1),
        *(body(n) for n in range(6, 60)),
    )
    worker = scene.worker(half, config={"batch_size": 5})
    worker.wait_for("began", count=5)
    full()
    scene.open(gate)
    worker.wait_for("done", count=len(ids))
    scene.wait_until_quiet()

    assert scene.checker.check_conserved(ids).acknowledged == set(ids)


def test_a_worker_that_starts_at_the_limit_drains_a_full_server(
    half: str, scene: Scene, full: Callable[[], None]
) -> None:
    ids = scene.publish(*(body(n) for n in range(50)))
    first = scene.worker(half, config={"batch_size": 5})
    first.wait_for("done", count=5)
    first.kill()
    full()

    scene.worker(half)
    scene.wait_until_quiet()

    assert scene.checker.check_conserved(ids).acknowledged == set(ids)


@pytest.mark.usefixtures("default_server")
def test_a_worker_with_a_name_of_its_own_starts_at_the_limit(half: str, scene: Scene, full: Callable[[], None]) -> None:
    ids = scene.publish(*(body(n) for n in range(50)))
    first = scene.worker(half, config={"worker_name": "alpha", "batch_size": 5})
    first.wait_for("done", count=5)
    assert first.stop() == 0
    full()

    scene.worker(half, config={"worker_name": "alpha"})
    scene.wait_until_quiet()

    assert scene.checker.check_conserved(ids).acknowledged == set(ids)


@pytest.mark.usefixtures("default_server")
def test_messages_of_a_dead_worker_are_recovered_at_the_limit(
    half: str, scene: Scene, full: Callable[[], None]
) -> None:
    ids = scene.publish(*(body(n, ["sleep", 3_600], runs=1) for n in range(5)))
    patient = {"min_idle_claim_ms": 60_000}  # neither takes over what the other one has, however slow the machine is
    dead = [scene.worker(half, config=patient) for _ in range(2)]
    eventually(lambda: sum(len(worker.said("began")) for worker in dead) == 5, "all have begun", story=scene.story)
    full()
    for worker in dead:
        worker.kill()
    survivor = scene.worker(half)

    survivor.wait_for("done", count=5)
    scene.wait_until_quiet()
    assert {line["attempts"] for line in survivor.said("began")} == {2}
    assert scene.checker.check_conserved(ids).acknowledged == set(ids)


def test_what_cannot_be_dead_lettered_at_the_limit_stays_pending_until_it_can(
    half: str, scene: Scene, full: Callable[[], None], raw: redis.Redis
) -> None:
    gate = scene.gate()
    bad, good = scene.publish(body(0, ["until", gate], ["raise", "fatal"]), body(1, ["until", gate]))
    worker = scene.worker(half, config={"retry_max_delay_ms": 300})
    worker.wait_for("began", count=2)
    full()
    scene.open(gate)
    worker.wait_for("done", n=1)
    eventually(lambda: scene.checker.pending_count() == 1, "the good one is acknowledged")
    assert raw.exists(f"{STREAM}_dlq") == 0
    assert {row["message_id"].decode() for row in scene.checker.pending()} == {bad}

    raw.config_set("maxmemory", 0)
    worker.wait_for("event", name="dead_lettered", id=bad)
    scene.wait_until_quiet()

    found = scene.checker.check_conserved([bad, good])
    assert found.dead == {bad: "fatal"}
    scene.checker.check_quiet()


@pytest.mark.usefixtures("default_server")
def test_finished_entries_are_trimmed_at_the_limit(half: str, scene: Scene, full: Callable[[], None]) -> None:
    gate = scene.gate()
    scene.publish(*(body(n) for n in range(30)), body(30, ["until", gate]))
    worker = scene.worker(half, config={"max_stream_size": 3, "retention_interval_ms": 100})
    worker.wait_for("began", n=30)
    full()
    scene.open(gate)
    eventually(lambda: scene.raw.xlen(STREAM) <= 3, "only the newest are kept")


async def test_the_client_tells_what_the_server_would_do_to_the_data(
    start_server: Callable[..., EmbeddedServer],
) -> None:
    careless = start_server(options={"maxmemory-policy": "allkeys-lru"})
    async with StreamClient.from_url(careless.url) as client:
        told = await client.capabilities()
        assert told.may_evict
        assert told.is_append_only is False
    careful = start_server(persistent=True, options={"maxmemory-policy": "noeviction", "appendfsync": "always"})
    async with StreamClient.from_url(careful.url) as client:
        told = await client.capabilities()
        assert not told.may_evict
        assert told.is_append_only is True
        assert told.fsync == "always"
