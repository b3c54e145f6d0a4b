"""Worker processes, and whatever is left of them ended with the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.sync.tasks import RedisTaskQueue

ROOT = Path(__file__).resolve().parents[2]
IDLE_MS = 2_000  # must run out, and hold meanwhile on a busy machine
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def queue(redis_url: str) -> Iterator[RedisTaskQueue]:
    with RedisTaskQueue(redis_url, idle_ms=IDLE_MS) as queue:
        yield queue


@pytest.fixture
def start_worker(redis_url: str) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(idle_ms: int = IDLE_MS, **options: object) -> subprocess.Popen[bytes]:
        words = [redis_url, json.dumps({"idle_ms": idle_ms}), json.dumps(options)]
        command = [sys.executable, "-m", "tests.task_faults.process", *words]
        processes.append(subprocess.Popen(command, cwd=ROOT))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
