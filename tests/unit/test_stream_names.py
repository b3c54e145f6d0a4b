"""The name of a stream tells what it is: the way back from the keys."""

from __future__ import annotations

import pytest

from penstock.keys import BalancerKeys, QueueKeys, StreamKeys, TaskKeys
from penstock.keys.stream_names import queue_log, service_of, source_of_dead_letters, task_stream, without_tag


def test_streams_of_a_task_queue_are_recognised() -> None:
    keys = TaskKeys.of("jobs")
    assert task_stream(keys.tasks().stream) == ("jobs", "tasks")
    assert task_stream(keys.tasks(".high:kind=a").stream) == ("jobs", "tasks")
    assert task_stream(keys.results) == ("jobs", "results")
    assert task_stream(keys.dead) == ("jobs", "dead")


@pytest.mark.parametrize("name", ["orders", ".tasks", ".dead", "jobs.tasksX", "results"])
def test_other_streams_are_none_of_a_task_queue(name: str) -> None:
    assert task_stream(name) is None


def test_streams_of_queues_and_services_are_recognised() -> None:
    queue, service = QueueKeys.of("mail"), BalancerKeys.of("svc")
    assert queue_log(queue.completed) == ("mail", "completed")
    assert queue_log(queue.dead_letter) == ("mail", "dlq")
    assert queue_log("mail::other") is queue_log("::dlq") is queue_log("mail") is None
    assert service_of(service.stream) == "svc"
    assert service_of("-input") is service_of("orders") is None


def test_the_source_of_dead_letters_is_told_by_their_name() -> None:
    assert source_of_dead_letters(StreamKeys.of("orders").default_dead_letters()) == "orders"
    assert source_of_dead_letters("{orders}_dlq") == "{orders}"
    assert source_of_dead_letters(BalancerKeys.of("svc").dead_letters) == "svc-input"
    assert source_of_dead_letters("_dlq") is source_of_dead_letters("orders") is None


def test_a_tag_that_is_all_of_a_name_is_taken_off() -> None:
    assert without_tag("{orders}") == "orders"
    assert without_tag("{a}b") is without_tag("orders") is without_tag("{}") is None
