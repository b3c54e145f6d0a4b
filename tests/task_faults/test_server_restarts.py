"""A server that goes away and comes back: workers go on where they were, and no task is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from penstock.redis.embedded import EmbeddedServer
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.task_faults.conftest import ROOT

PATIENCE_S = 60.0


def test_workers_outlive_a_server_that_is_killed(start_server: Callable[..., EmbeddedServer]) -> None:
    server = start_server(persistent=True, options={"appendfsync": "always"})
    words = [server.unix_url, json.dumps({"idle_ms": 1_000}), json.dumps({"concurrency": 4})]
    worker = subprocess.Popen([sys.executable, "-m", "tests.task_faults.process", *words], cwd=ROOT)
    try:
        with RedisTaskQueue(server.unix_url) as queue:
            tasks = [Task(kind="nap", payload={"seconds": 0.05}) for _ in range(60)]
            queue.enqueue_many(tasks)
            assert queue.wait_for_result(tasks[5].id, PATIENCE_S) is not None
            server.kill()
            server.start()
        with RedisTaskQueue(server.unix_url) as queue:
            for task in tasks:
                assert queue.wait_for_result(task.id, PATIENCE_S) is not None
            assert queue.dead.count() == 0
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
