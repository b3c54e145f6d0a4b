"""Signed and encrypted tasks: what a stranger writes is a dead letter; retries, lanes and redrives open them again."""

from __future__ import annotations

import pytest
import redis

from penstock import Protection, StreamClient
from penstock.protection import Mode
from penstock.tasks import Handlers, RedisTaskQueue, Retry, Task, Worker

KEY = b"k" * 32


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
@pytest.mark.acl(queue=("jobs", "others"))
async def test_only_what_a_holder_of_the_key_enqueued_is_run(mode: Mode, redis_url: str, raw: redis.Redis) -> None:
    handlers = Handlers()
    runs: list[str] = []

    @handlers.task("pay", retry=Retry(initial_delay_ms=0))
    def flaky(task: Task) -> str:
        runs.append(task.payload["card"])
        if runs.count("4711") < 2:
            raise ValueError("not yet")
        return "done"

    async with StreamClient.from_url(redis_url, protection=Protection(mode, {"2026": KEY})) as client:
        queue = RedisTaskQueue(client, "jobs", max_retry=1)
        await RedisTaskQueue(client, "others").enqueue(Task(kind="pay", id="t-1", payload={"card": "copied"}))
        [(_, copied)] = raw.xrange("others.tasks")
        raw.xadd("jobs.tasks", copied)
        raw.xadd("jobs.tasks", {"data": b'{"kind": "pay", "id": "t-2", "payload": {"card": "plain"}}'})
        await queue.enqueue(Task(kind="pay", id="t-3", payload={"card": "4711"}))
        await queue.enqueue(Task(kind="pay", id="t-4", payload={"card": "4711"}, priority="high"))
        assert (b"4711" in raw.xrange("jobs.tasks")[2][1][b"data"]) == (mode == "sign")
        assert {task.id for task in await queue.list_tasks()} == {"t-3", "t-4"}
        await Worker(queue, handlers, burst=True).run()
        assert set(runs) == {"4711"}
        assert [record[b"dlq_reason"] for _, record in raw.xrange("jobs.dead")] == [b"not_authentic"] * 2
        await queue.close()
