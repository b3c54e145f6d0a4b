"""Anybody may write anything to the streams of a task queue: it ends in the dead letters and speaks for no other task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from penstock import Protection, StreamClient
from penstock.errors import EncodeError, PayloadTooLarge
from penstock.events import Event, EventName
from penstock.ids import LAST
from penstock.task import Result, Status, Task
from penstock.tasks import Handlers, RedisTaskQueue, StubQueue
from tests.helpers.aio import DEADLINE_S, eventually
from tests.helpers.hostile import MANY_FIELDS, NO_NUMBERS, wide
from tests.tasks.stage import quick, running

pytestmark = [pytest.mark.usefixtures("default_server")]


@pytest.mark.parametrize("count", MANY_FIELDS)
async def test_an_entry_of_very_many_fields_is_dead_lettered_and_redriven_with_what_matters(
    queue: RedisTaskQueue, raw: redis.Redis, count: int
) -> None:
    task, behind = Task(kind="render"), Task(kind="render")
    raw.xadd("jobs.tasks", wide(count, data="no task"))
    raw.xadd("jobs.tasks", wide(count, data=msgspec.json.encode(task)))
    await queue.enqueue(behind)
    found = list[Task]()
    while len(found) < 2:  # of large entries a call hands out a few
        found += await queue.pop_many(10)
    assert [popped.id for popped in found] == [task.id, behind.id]
    await queue.dead_letter(task.id)
    letters = [letter async for letter in queue.dead.iterate()]
    assert [(letter.reason, letter.task_id, letter.data[:7]) for letter in letters] == [
        ("decode_error", "", b"no task"),
        ("fatal", task.id, msgspec.json.encode(task)[:7]),
    ]
    assert all(letter.cut.startswith(f"{count - 2_000} fields") for letter in letters)
    assert all(letter.fields["field-1999"] == b"1999" for letter in letters)
    assert await queue.dead.redrive([letters[1].id]) == [letters[1].task_id]
    again = await queue.pop(block=False)
    assert again is not None
    assert again.id == task.id


async def test_a_task_of_very_many_fields_is_moved_to_the_lane_where_it_belongs(
    queue: RedisTaskQueue, other: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render")
    raw.xadd("jobs.tasks", wide(10_000, data=msgspec.json.encode(task)))
    assert await queue.pop_many(10, kinds={"mail"}) == []
    assert [found.id for found in await other.pop_many(10, kinds={"render"})] == [task.id]


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
async def test_attempts_that_are_no_number_are_a_decode_error(
    queue: RedisTaskQueue, raw: redis.Redis, value: str | bytes
) -> None:
    raw.xadd("jobs.tasks", {"data": msgspec.json.encode(Task(kind="render")), "attempts": value})
    behind = Task(kind="render")
    await queue.enqueue(behind)
    assert [task.id for task in await queue.pop_many(10)] == [behind.id]
    [letter] = [letter async for letter in queue.dead.iterate()]
    assert letter.reason == "decode_error"
    assert "attempts" in letter.error_text


async def test_a_malformed_entry_does_not_speak_for_the_task_whose_id_it_carries(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render")
    await queue.enqueue(task)
    raw.xadd("jobs.tasks", {"data": "no task", "task_id": task.id, "kind": "render"})
    raw.xadd("jobs.tasks", {"data": "no task", "task_id": "not-yet-queued", "kind": "render"})
    assert [found.id for found in await queue.pop_many(10)] == [task.id]
    assert raw.xlen("jobs.dead") == 2
    assert await queue.wait_for_result(task.id, 1) is None
    assert await queue.wait_for_result("not-yet-queued", 0) is None
    assert await queue.enqueue(Task(kind="render", id="not-yet-queued")) == "not-yet-queued"
    assert await queue.pop(block=False) is not None


async def test_a_copy_of_a_task_in_hand_is_a_dead_letter(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = Task(kind="render")
    await queue.enqueue(task)
    [(_, fields)] = raw.xrange("jobs.tasks")
    for _ in range(2):
        raw.xadd("jobs.tasks", fields)
    assert [found.id for found in await queue.pop_many(10)] == [task.id]
    raw.xadd("jobs.tasks", fields)
    assert await queue.pop_many(10, block=False) == []
    assert [letter.reason async for letter in queue.dead.iterate()] == ["invalid"] * 3
    assert await queue.wait_for_result(task.id, 1) is None
    assert await queue.finish_many([Result(task_id=task.id, kind=task.kind)]) == [True]
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


async def test_a_copy_that_enqueue_did_not_write_is_a_dead_letter_when_its_task_is_open_or_has_ended(
    queue: RedisTaskQueue, redis_url: str, raw: redis.Redis
) -> None:
    task = Task(kind="render")
    await queue.enqueue(task)
    [(_, fields)] = raw.xrange("jobs.tasks")
    copies = [{b"data": fields[b"data"]}, {**fields, b"note": b"again"}]
    async with RedisTaskQueue(redis_url, name="jobs") as other:
        assert [found.id for found in await other.pop_many(10)] == [task.id]
        for copy in copies:
            raw.xadd("jobs.tasks", copy)
        assert await queue.pop_many(10, block=False) == []
        assert await other.finish_many([Result(task_id=task.id, kind=task.kind, data=1)]) == [True]
    for copy in copies:
        raw.xadd("jobs.tasks", copy)
    await queue.enqueue(Task(kind="render", id="behind"))
    assert [found.id for found in await queue.pop_many(10)] == ["behind"]
    letters = [letter async for letter in queue.dead.iterate()]
    assert [letter.reason for letter in letters] == ["invalid"] * 4
    assert [letter.error_text for letter in letters[2:]] == [f"task {task.id} already has a result"] * 2
    result = await queue.wait_for_result(task.id, 1)
    assert result is not None
    assert result.data == 1
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 1


async def test_of_two_entries_of_a_task_that_were_written_by_hand_the_second_waits_for_the_end_of_the_first(
    queue: RedisTaskQueue, raw: redis.Redis
) -> None:
    task = Task(kind="render")
    for _ in range(2):
        raw.xadd("jobs.tasks", {"data": msgspec.json.encode(task)})
    assert [found.id for found in await queue.pop_many(10)] == [task.id]
    assert raw.zcard(queue.keys.tasks().retries(queue.group)) == 1
    assert await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=1)]) == [True]
    [again] = await queue.pop_many(10, timeout=DEADLINE_S)
    assert (again.id, again.attempts) == (task.id, 1)
    assert await queue.finish_many([Result(task_id=task.id, kind=task.kind, data=2)]) == [False]
    assert raw.xpending("jobs.tasks", "jobs")["pending"] == 0


@pytest.mark.parametrize("value", [b"", b"1-1", b"no-lane ", b"1-1 nothing", b"\xff"], ids=repr)
async def test_a_value_of_the_index_that_names_no_lane_is_no_open_task(
    queue: RedisTaskQueue, raw: redis.Redis, value: bytes
) -> None:
    raw.hset(queue.keys.index, "forged", value)
    assert not await queue.ack("forged")
    assert not await queue.nack("forged")


async def test_a_forged_entry_does_not_speak_for_a_task(redis_url: str, raw: redis.Redis) -> None:
    protection = Protection("sign", {"2026": b"k" * 32})
    async with StreamClient.from_url(redis_url, protection=protection) as client:
        queue = RedisTaskQueue(client, "jobs")
        raw.xadd("jobs.tasks", {"data": msgspec.json.encode(Task(kind="render")), "task_id": "t-1", "kind": "render"})
        assert await queue.pop(block=False) is None
        assert [letter.reason async for letter in queue.dead.iterate()] == ["not_authentic"]
        assert await queue.wait_for_result("t-1", 0) is None


async def test_an_entry_that_no_handler_gets_is_logged_emitted_and_counted(
    redis_url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handlers, events, held = Handlers(), list[Event](), Task(kind="render", id="held")
    handlers.task("render")(str)
    protection = Protection("sign", {"2026": b"k" * 32})
    async with StreamClient.from_url(redis_url, protection=protection) as client:
        queue = RedisTaskQueue(client, "jobs", on_event=events.append)
        await queue.enqueue(held, delay=3600)
        copy = queue.encode_task(held)
        signed = protection.protect(copy, "jobs.tasks", held.id)
        entry_ids = [
            raw.xadd("jobs.tasks", {"data": data, "task_id": "held", "kind": "render"}).decode()
            for data in (b"no task", copy, signed)
        ]
        worker = quick(queue, handlers)
        with caplog.at_level(logging.ERROR, "penstock.tasks"):
            async with running(worker):
                await eventually(lambda: worker.report().dead == 3)
        assert queue.undeliverable == 3
        reasons = [letter.reason async for letter in queue.dead.iterate()]
        assert (worker.report().failed, worker.report().ok) == (0, 0)
    assert set(reasons) == {"not_authentic", "invalid"}
    logged = [record.__dict__ for record in caplog.records]
    assert [(row["stream"], row["group"], row["reason"]) for row in logged] == [
        ("jobs.tasks", "jobs", reason) for reason in reasons
    ]
    assert sorted(row["id"] for row in logged) == sorted(entry_ids)
    told = [event.fields["reason"] for event in events if event.name is EventName.DEAD_LETTERED]
    assert told == reasons


async def test_a_task_that_cannot_be_read_gets_an_error_as_its_result(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    task = Task(kind="render")
    msgspec.structs.force_setattr(task, "schema_v", 2)  # as a producer of the next version writes it
    await queue.enqueue(task)
    assert await queue.pop(block=False) is None
    result = await queue.wait_for_result(task.id, 1)
    assert result is not None
    assert (result.status, result.kind) == (Status.ERROR, "render")
    assert "schema_v=2" in str(result.error)
    assert raw.xlen("jobs.dead") == 1


async def test_the_end_of_a_traceback_is_kept(client: StreamClient) -> None:
    task = Task(kind="render")
    redis_queue, stub = RedisTaskQueue(client, "jobs"), StubQueue()
    for queue in (redis_queue, stub):
        await queue.enqueue(task)
        await queue.pop()
        await queue.dead_letter(task.id, error="ValueError", text="no", traceback="x" * 10_000 + "the end")
    [letter] = [letter async for letter in redis_queue.dead.iterate()]
    assert letter.traceback == stub.dead[0].traceback == "x" * 7_993 + "the end"


async def test_a_time_beyond_all_calendars_can_be_listed(queue: RedisTaskQueue, raw: redis.Redis) -> None:
    raw.xadd("jobs.dead", {"data": "x", "dlq_time": str(2**63 - 1), "redrives": "²"})
    [letter] = [letter async for letter in queue.dead.iterate()]
    assert (letter.dead_at.year, letter.redrives) == (9999, 0)


# --- limits ---------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


async def test_a_task_beyond_the_limits_is_refused(client: StreamClient) -> None:
    for queue in (RedisTaskQueue(client, "jobs", max_payload_depth=50), StubQueue(max_payload_depth=50)):
        await queue.enqueue(Task(kind="render", payload=nested(50)))
        with pytest.raises(EncodeError, match="max_payload_depth=50"):
            await queue.enqueue(Task(kind="render", payload=nested(51)))
        with pytest.raises(EncodeError, match="max_payload_depth=50"):
            await queue.enqueue(Task(kind="render", then=(Task(kind="mail", payload=nested(51)),)))
        with pytest.raises(PayloadTooLarge, match="max_payload_bytes=1048576"):
            await queue.enqueue_many([Task(kind="render"), Task(kind="render", payload={"text": "x" * 1_048_576})])
        assert await queue.pending_count() == 1


async def test_a_chain_of_tasks_may_be_longer_than_payloads_are_deep(client: StreamClient) -> None:
    queue = RedisTaskQueue(client, "jobs", max_payload_depth=50)
    task = Task(kind="last")
    for _ in range(100):
        task = Task(kind="step", then=(task,))
    await queue.enqueue(task)
    assert [found.id for found in await queue.pop_many(1)] == [task.id]


@pytest.mark.parametrize("encode", [msgspec.msgpack.encode, msgspec.json.encode])
async def test_a_task_beyond_the_limits_that_somebody_wrote_is_a_dead_letter(
    queue: RedisTaskQueue, raw: redis.Redis, encode: Callable[[Task], bytes]
) -> None:
    large, deep = Task(kind="render", payload={"n": [1] * 1_048_576}), Task(kind="render", payload=nested(300))
    for task in (large, deep):
        raw.xadd("jobs.tasks", {"data": encode(task)})
    behind = Task(kind="render")
    await queue.enqueue(behind)
    assert [task.id for task in await queue.pop_many(10)] == [behind.id]
    letters = [letter async for letter in queue.dead.iterate()]
    assert ["max_payload_bytes" in letters[0].error_text, "max_payload_depth" in letters[1].error_text] == [True, True]
    assert [letter.task for letter in letters] == [None, None]
    assert letters[0].data == encode(large)


async def test_a_result_that_does_not_fit_into_the_follow_up_is_an_error_of_the_task(client: StreamClient) -> None:
    handlers = Handlers()

    @handlers.task("make")
    async def make(task: Task) -> str:
        return "x" * 2_000

    queue = RedisTaskQueue(client, "jobs", max_retry=0, max_payload_bytes=1_000)
    task = Task(kind="make", then=(Task(kind="mail"),))
    await queue.enqueue(task)
    async with running(quick(queue, handlers)):
        result = await queue.wait_for_result(task.id, DEADLINE_S)
    assert result is not None
    assert (result.status, "max_payload_bytes=1000" in str(result.error)) == (Status.ERROR, True)


async def test_an_entry_that_no_dead_letters_take_waits_by_the_clock_of_the_server(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xadd(queue.keys.dead, {"junk": "1"}, id=LAST)  # nothing can be added behind it
    entry_id = raw.xadd("jobs.tasks", {"data": "no task"})
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 86_400)  # the worker's clock is a day ahead
    assert await queue.pop(block=False) is None
    due_ms, (seconds, _) = raw.zscore(queue.keys.tasks().retries(queue.group), entry_id), raw.time()
    assert due_ms is not None
    assert due_ms <= (seconds + 120) * 1000


async def test_an_entry_that_another_worker_has_taken_is_not_made_to_wait(
    queue: RedisTaskQueue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.xadd(queue.keys.dead, {"junk": "1"}, id=LAST)  # nothing can be added behind it
    entry_id = raw.xadd("jobs.tasks", {"data": "no task"})
    really = queue.client.run

    async def run(name: str, *args: Any) -> Any:
        try:
            return await really(name, *args)
        finally:
            if name == "tasks/release":  # which is refused; before it is put aside, its lease runs out
                raw.xclaim("jobs.tasks", queue.group, "other", 0, [entry_id])

    monkeypatch.setattr(queue.client, "run", run)
    assert await queue.pop(block=False) is None
    assert raw.zcard(queue.keys.tasks().retries(queue.group)) == 0
