"""A reader and an operator get by with the rights that `penstock acl` gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock import StreamClient
from penstock.errors import PermissionDenied
from penstock.ops import Inspector, RetentionPolicy, Sampler, TaskState
from penstock.ops.rights import Place, RoleName, rights_of
from penstock.redis.embedded import EmbeddedServer
from penstock.tasks import RedisTaskQueue, Task
from tests.helpers.users import refused
from tests.ops.stage import DEAD_LETTERS, GROUP, STREAM, add, give_up, read_as

PLACE = Place(streams=(STREAM,), queues=("jobs",), services=("svc",))


@pytest.fixture
async def server(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server with something of everything, and a user for each role."""
    server = start_server(port=0)
    with redis.Redis(unix_socket_path=server.unix_socket) as raw:
        known = {row["name"] for row in raw.command().values()}
        for role in (RoleName.READONLY, RoleName.OPERATOR):
            raw.execute_command("ACL", "SETUSER", role.value, ">secret", *rights_of(role, PLACE).rules(known))
        async with StreamClient.from_url(server.url) as client:
            await give_up(client, [1, 2])
            queue = RedisTaskQueue(client, "jobs")
            for n in range(3):
                await queue.enqueue(Task(kind="render", id=f"task-{n}"))
            await queue.pop()
            await queue.enqueue(Task(kind="render", id="cron.nightly.1"), delay=60)
        add(raw, 5)
        read_as(raw, "someone", 2)
        raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
        raw.execute_command("ACL", "LOG", "RESET")
    return server


def as_user(server: EmbeddedServer, role: RoleName) -> StreamClient:
    return StreamClient.from_url(server.url, username=role.value, password="secret")


def missing(server: EmbeddedServer) -> list[str]:
    """Returns what was refused that somebody needs: dead letters are looked for under names that are not ours."""
    guessed = {f"{STREAM}.dead", f"{{{STREAM}-input}}_dlq"}
    return [name for name in refused(server) if name not in {"config|get", "config", *guessed}]


async def look_at_everything(inspector: Inspector) -> None:
    await inspector.overview()
    await inspector.streams.info(STREAM)
    await inspector.streams.entries(STREAM)
    await inspector.groups.lag(STREAM, GROUP)
    await inspector.groups.consumers(STREAM, GROUP)
    await inspector.pending.page(STREAM, GROUP)
    await inspector.dead_letters.streams()
    await inspector.dead_letters.failures(STREAM)
    await inspector.queues.all()
    await inspector.tasks.all()
    for state in (TaskState.QUEUED, TaskState.RUNNING, TaskState.SCHEDULED, TaskState.DONE):
        await inspector.tasks.tasks("jobs", state)
    await inspector.tasks.status("jobs", "task-0")
    await inspector.schedules.of("jobs")
    await inspector.workers.page()
    await inspector.services.streams("svc")
    await inspector.retention.page()
    await Sampler(inspector).sample()


async def test_a_reader_sees_everything_and_changes_nothing(server: EmbeddedServer) -> None:
    async with as_user(server, RoleName.READONLY) as client:
        inspector = Inspector(client)
        await look_at_everything(inspector)
        assert missing(server) == []
        with pytest.raises(PermissionDenied):
            await inspector.dead_letters.redrive(STREAM)
        with pytest.raises(PermissionDenied):
            await inspector.dead_letters.purge(STREAM)
        with pytest.raises(PermissionDenied):
            await inspector.groups.delete(STREAM, GROUP, force=True)
        with pytest.raises(PermissionDenied):
            await inspector.tasks.cancel("jobs", "task-1")
        with pytest.raises(PermissionDenied):
            await inspector.schedules.pause("jobs", "nightly")


async def test_an_operator_may_do_everything_that_the_inspector_does(server: EmbeddedServer) -> None:
    async with as_user(server, RoleName.OPERATOR) as client:
        inspector = Inspector(client)
        await look_at_everything(inspector)
        [first, second] = [entry.id for entry in (await inspector.pending.page(STREAM, GROUP)).items]
        assert await inspector.pending.claim(STREAM, GROUP, [first], "other") == [first]
        assert await inspector.pending.retry(STREAM, GROUP, [first]) == [first]
        assert await inspector.pending.dead_letter(STREAM, GROUP, [second], dead_letters=DEAD_LETTERS) == [second]
        [letter, *_] = (await inspector.dead_letters.page(STREAM)).items
        await inspector.dead_letters.redrive_edited(STREAM, letter.id, {"order": 7})
        assert (await inspector.dead_letters.redrive(STREAM, limit=1)).redriven == 1
        assert await inspector.dead_letters.purge(STREAM) == 1
        assert await inspector.tasks.cancel("jobs", "task-1") == "cancelled"
        assert await inspector.schedules.pause("jobs", "nightly")
        assert await inspector.schedules.run("jobs", "nightly")
        assert await inspector.schedules.resume("jobs", "nightly")
        await inspector.groups.seek(STREAM, GROUP, "+")
        await inspector.groups.remove_dead_consumers(STREAM, GROUP, idle_ms=0)
        await inspector.retention.trim(STREAM, RetentionPolicy(max_length=1))
        await inspector.groups.delete(STREAM, GROUP, force=True)
    assert missing(server) == []
