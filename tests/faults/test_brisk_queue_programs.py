"""Programs that take the next message with the end of the one before: how they end is of no consequence to others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from penstock import sync
from penstock.redis.embedded import EmbeddedServer
from tests.faults.brisk_program import HANDLED, QUEUE
from tests.faults.waiting import eventually

pytestmark = pytest.mark.usefixtures("default_server")
GROUP = "queue"
MANY = 1_000_000
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(server: EmbeddedServer) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(how: str, count: int, lease_s: float = 300.0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.brisk_program", server.url, how, str(count), str(lease_s)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]))
        return running[-1]

    yield begin
    for program in running:
        program.kill()
        program.wait()
        assert program.stdin is not None
        program.stdin.close()


def fill(server: EmbeddedServer, count: int) -> set[str]:
    messages = {f"message {number}" for number in range(count)}
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        queue = sync.RedisMessageQueue(QUEUE, client=client)
        for message in messages:
            queue.publish(message)
        queue.close()
    return messages


def handled(raw: redis.Redis) -> dict[str, int]:
    return {message.decode(): int(times) for message, times in raw.hgetall(HANDLED).items()}


def held(raw: redis.Redis) -> int:
    """Returns how many messages others must wait a lease for."""
    pending = {row["message_id"] for row in raw.xpending_range(QUEUE, GROUP, "-", "+", 1_000)}
    return len(pending - set(raw.zrange(f"{{{QUEUE}}}:retries:{GROUP}", 0, -1)))


@pytest.mark.parametrize("how", ["async", "sync"])
def test_a_program_that_ends_without_a_word_leaves_nothing_to_wait_for(
    server: EmbeddedServer, raw: redis.Redis, start: Start, how: str
) -> None:
    messages = fill(server, 600)
    assert start(how, 300).wait() == 0
    assert held(raw) == 0
    assert start(how, 300).wait() == 0
    assert handled(raw) == dict.fromkeys(messages, 1)
    assert raw.xlen(QUEUE) == 0


def test_a_program_whose_main_thread_ends_is_not_kept_alive(
    server: EmbeddedServer, raw: redis.Redis, start: Start
) -> None:
    fill(server, 2_000)
    program = start("daemon", MANY)
    assert program.wait() == 0
    assert held(raw) <= 1  # what the thread was at when the interpreter went


@pytest.mark.parametrize("how", ["async", "sync"])
def test_a_killed_program_had_one_message_at_most(
    server: EmbeddedServer, raw: redis.Redis, start: Start, how: str
) -> None:
    messages = fill(server, 1_500)
    killed = start(how, MANY, lease_s=5.0)
    eventually(lambda: len(handled(raw)) > 500, "it is at work")
    killed.kill()
    killed.wait()
    assert held(raw) <= 1
    start(how, MANY, lease_s=5.0)
    eventually(lambda: raw.xlen(QUEUE) == 0, "all is done")
    assert set(handled(raw)) == messages
    assert sum(handled(raw).values()) <= len(messages) + 1
