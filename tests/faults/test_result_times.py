"""How soon results are saved after their back-end was away: `make test-failover` measures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.results.postgres import PostgresBackend
from penstock.tasks import Handlers, RedisTaskQueue, Task
from penstock.testing import FaultProxy
from tests.helpers.aio import DEADLINE_S
from tests.helpers.postgres import PostgresServer
from tests.tasks.stage import quick, running

AWAY_S, BOUND_S = 2.0, 5.0


@pytest.mark.usefixtures("default_server")
async def test_a_back_end_that_was_away_for_2_seconds_has_all_results_within_5(
    redis_url: str, postgres: PostgresServer, measured: Callable[[str, object], None]
) -> None:
    handlers, runs = Handlers(), Counter[str]()

    @handlers.task("work")
    async def work(task: Task) -> str:
        runs[task.id] += 1
        return task.id

    tasks = [Task(kind="work") for _ in range(300)]
    with FaultProxy(("127.0.0.1", postgres.port)) as proxy:
        dsn = postgres.dsn_through(proxy.port)
        async with RedisTaskQueue(redis_url) as queue, PostgresBackend(dsn, timeout_s=1) as backend:
            async with running(quick(queue, handlers, results=backend)):
                await queue.enqueue_many(tasks[:100])
                for task in tasks[:100]:
                    assert await queue.wait_for_result(task.id, DEADLINE_S) is not None
                proxy.refuse()
                proxy.reset_all()
                await queue.enqueue_many(tasks[100:])
                await asyncio.sleep(AWAY_S)  # the outage
                proxy.heal()
                back_s = time.monotonic()
                for task in tasks:
                    assert await queue.wait_for_result(task.id, DEADLINE_S) is not None
                took_s = time.monotonic() - back_s
            saved = {result.task_id async for result in backend.iter()}
    measured("seconds until 200 results were saved", round(took_s, 2))
    assert took_s < BOUND_S
    assert saved == {task.id for task in tasks}
    assert runs == Counter(saved), "no handler ran again"
