"""What tasks note of what they begin; against Redis, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock.policy import Reason
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.pipeline.dead_letters import DeadLetterConfig
from penstock.spark.pipeline.handling import Begun, BegunStream, WorkerDied
from penstock.spark.runtime.link import Link

Task = Callable[..., Begun]


@pytest.fixture
def task(stream_server: EmbeddedServer, stream_redis: redis.Redis) -> Task:
    """Begins a task of one batch."""

    def begin(attempts: int = 3, batch: str = "q:0") -> Begun:
        return Begun(DeadLetterConfig(Link(stream_server.url), "shop", "").writer(batch), "shop:handle", attempts)

    return begin


def died(task: Begun, entry_id: str | None = None) -> BegunStream:
    """Returns the notes of a task whose process ends with a message."""
    notes = task.stream("orders", "1-0")
    if entry_id is not None:
        assert notes.alone is not None
        notes.take(entry_id)
    return notes


def test_a_task_that_ends_leaves_nothing(task: Task, stream_redis: redis.Redis) -> None:
    first = task()
    assert first.stream("orders", "1-0").alone is None
    first.end()
    assert task().stream("orders", "1-0").alone is None
    task().end()  # has no stream
    task(batch="q:1").stream("orders", "1-0")
    assert task(batch="q:2").stream("orders", "1-0").alone is None


def test_a_message_that_ends_its_process_is_given_up_after_the_attempts(task: Task) -> None:
    died(task())
    assert died(task(), "5-0").failure("5-0") is None
    again = died(task(), "5-0")
    assert (again.tries_before("5-0"), again.tries_before("4-0"), again.failure("5-0")) == (2, 0, None)
    last = task()
    notes = last.stream("orders", "1-0")
    failure: Any = notes.failure("5-0")
    assert (failure.reason, failure.attempts, type(failure.error)) == (Reason.MAX_DELIVERIES, 3, WorkerDied)
    assert "died 3 times" in str(failure.error)
    assert notes.failure("4-0") is None
    notes.forget(["4-0", "5-0"])
    last.end()
    assert task().stream("orders", "1-0").tries_before("5-0") == 0


def test_even_with_one_attempt_each_has_one_alone(task: Task) -> None:
    died(task(attempts=1))
    assert died(task(attempts=1), "5-0").failure("5-0") is None
    assert task(attempts=1).stream("orders", "1-0").failure("5-0") is not None


def test_an_error_is_no_death(task: Task, stream_redis: redis.Redis) -> None:
    died(task())
    careful = task()
    alone = careful.stream("orders", "1-0").alone
    assert alone is not None
    with pytest.raises(ValueError, match="of the handler"), alone("5-0"):
        raise ValueError("of the handler")
    careful.end()
    assert task().stream("orders", "1-0").tries_before("5-0") == 0
    assert stream_redis.ttl("{orders_dlq}:spark-begun:q:0") > 0
