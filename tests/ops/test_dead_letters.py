"""Dead letters of streams, queues, tasks and balanced services are read, redriven, edited and purged alike."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis

import penstock.ops.dead_letters as dead_letters_module
from penstock import DeadLetters, Protection, RedisMessageQueue, StreamClient, StreamProducer
from penstock.errors import ConfigurationError, NotFound
from penstock.ops import DeadLetterFilter, Inspector, StreamKind
from penstock.ops.entries import EntryRange
from penstock.ops.failures import fingerprint
from penstock.serializers import MsgpackSerializer
from penstock.tasks import RedisTaskQueue, Task
from tests.ops.stage import DEAD_LETTERS, GROUP, STREAM, add, give_up, read_as

pytestmark = pytest.mark.usefixtures("default_server")


async def dead_task(client: StreamClient, **options: object) -> str:
    """Adds a task and gives it up; returns its id."""
    queue = RedisTaskQueue(client, "jobs")
    await queue.enqueue(Task(kind="render", payload={"page": 7}))
    task = await queue.pop()
    assert task is not None
    await queue.dead_letter(task.id, error="ValueError", text="no such page: 7")
    return task.id


async def dead_message(client: StreamClient) -> None:
    """Publishes a message to a queue and gives it up."""
    queue = RedisMessageQueue("mail", client=client, max_delivery_count=1)
    await queue.publish({"to": "you"})
    with contextlib.suppress(ValueError):
        async with queue.process_message():
            raise ValueError("no such address")


# --- which there are ------------------------------------------------------------------------------


async def test_dead_letters_of_all_parts_are_found(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, [1, 2])
    await dead_message(client)
    await dead_task(client)
    raw.xadd("{svc-input}_dlq", {"lbs-input": "{}", "dlq_reason": "decode_error"})
    raw.xadd("graveyard", {"data": "x", "dlq_reason": "fatal", "dlq_source": "elsewhere"})
    found = {
        each.stream: (each.kind, each.owner, each.count) for each in (await inspector.dead_letters.streams()).items
    }
    assert found == {
        "orders_dlq": (StreamKind.STREAM, "orders", 2),
        "mail::dlq": (StreamKind.QUEUE, "mail", 1),
        "jobs.dead": (StreamKind.TASKS, "jobs", 1),
        "{svc-input}_dlq": (StreamKind.SERVICE, "svc", 1),
        "graveyard": (StreamKind.STREAM, "", 1),
    }


async def test_streams_of_dead_letters_are_paged_and_a_page_looks_at_a_bounded_number_of_streams(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_module, "MAX_PER_PAGE", 3)
    expected = [f"{name}_dlq" for name in "bcdj"]
    for name in (*"abcdefghij", *expected):
        raw.xadd(name, {"data": "x", "dlq_reason": "fatal"} if name in expected else {"data": "x"})
    found, sizes, cursor = list[str](), list[int](), ""
    while True:
        page = await inspector.dead_letters.streams(limit=1, cursor=cursor)
        found += [each.stream for each in page.items]
        sizes.append(len(page.items))
        cursor = page.cursor
        if not cursor:
            break
    assert found == expected
    assert set(sizes) == {0, 1}, "a page may be empty and have a cursor"
    assert [each.owner for each in (await inspector.dead_letters.streams("b_*")).items] == ["b"]


async def test_an_entry_that_calls_itself_a_dead_letter_makes_no_stream_one(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    forged = {"data": "x", "dlq_reason": "fatal", "dlq_source": "elsewhere"}
    raw.xadd(STREAM, forged)
    kept = add(raw, 3)
    raw.xadd(STREAM, forged)
    read_as(raw, "someone", 1)
    assert (await inspector.streams.info(STREAM)).kind is StreamKind.STREAM
    assert (await inspector.dead_letters.streams()).items == ()
    with pytest.raises(NotFound, match="has no dead letters"):
        await inspector.dead_letters.purge(STREAM)
    raw.xgroup_destroy(STREAM, GROUP)
    assert await inspector.dead_letters.count(STREAM) == (2, True), "without consumers it may be one"
    assert await inspector.dead_letters.purge(STREAM) == 2
    assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)] == kept, "which are no dead letters"


async def test_dead_letters_are_looked_for_where_they_usually_are_first(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    raw.xadd(STREAM, {"data": "x", "dlq_reason": "fatal"})
    raw.xadd(DEAD_LETTERS, {"data": "x"})
    raw.xadd(f"{DEAD_LETTERS}_dlq", {"data": "x", "dlq_reason": "fatal"})
    for name in (STREAM, DEAD_LETTERS):
        assert await inspector.dead_letters.resolve(name) == DEAD_LETTERS


@pytest.mark.parametrize("name", ["x" * 508, "{x", "a b" * 100])
async def test_they_may_have_names_that_no_task_queue_may_have(
    inspector: Inspector, raw: redis.Redis, name: str
) -> None:
    raw.xadd(f"{name}_dlq", {"data": "x", "dlq_reason": "fatal"})
    for known in (name, f"{name}_dlq"):
        assert len((await inspector.dead_letters.page(known)).items) == 1


@pytest.mark.parametrize("name", ["orders", "orders_dlq"])
async def test_they_are_meant_by_their_name_or_by_that_of_their_owner(
    client: StreamClient, inspector: Inspector, name: str
) -> None:
    await give_up(client, [1])
    assert await inspector.dead_letters.resolve(name) == DEAD_LETTERS
    assert len((await inspector.dead_letters.page(name)).items) == 1


async def test_unknown_dead_letters_are_not_found(client: StreamClient, inspector: Inspector) -> None:
    await StreamProducer(client, STREAM).push(1)
    with pytest.raises(NotFound, match="has no dead letters"):
        await inspector.dead_letters.page(STREAM)
    with pytest.raises(NotFound, match="no dead-letter stream for 'nothing'"):
        await inspector.dead_letters.page("nothing")
    await give_up(client, [1])
    with pytest.raises(NotFound, match="has no dead letter '1-1'"):
        await inspector.dead_letters.show(STREAM, "1-1")
    with pytest.raises(NotFound, match="has no dead letter 'x'"):
        await inspector.dead_letters.show(STREAM, "x")


# --- reading --------------------------------------------------------------------------------------


async def test_a_dead_letter_tells_what_happened(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [1])
    [letter] = (await inspector.dead_letters.page(STREAM)).items
    assert (letter.reason, letter.error, letter.source_stream, letter.group) == ("fatal", "FatalError", STREAM, GROUP)
    assert "order 1 is odd" in letter.error_text
    assert "KeyError" in letter.traceback
    assert letter.payload.value == 1
    assert (await inspector.dead_letters.show(STREAM, letter.id)).id == letter.id


async def test_pages_go_on_and_match(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, list(range(10)))
    first = await inspector.dead_letters.page(STREAM, limit=4)
    second = await inspector.dead_letters.page(STREAM, limit=10, cursor=first.cursor)
    assert [letter.payload.value for letter in (*first.items, *second.items)] == list(range(9, -1, -1))
    assert second.cursor == ""
    found = await inspector.dead_letters.page(STREAM, DeadLetterFilter(text="order 7"))
    assert [letter.payload.value for letter in found.items] == [7]
    assert (await inspector.dead_letters.page(STREAM, DeadLetterFilter(reason="expired"))).items == ()
    assert (await inspector.dead_letters.page(STREAM, DeadLetterFilter(since_ms=1 << 42))).items == ()


async def test_failures_of_one_cause_are_one_group(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, list(range(7)))
    found = await inspector.dead_letters.failures(STREAM)
    assert [(group.count, group.error_text[:11]) for group in found.groups] == [(4, "order 6 is "), (3, "order 5 is ")]
    assert (found.read, found.is_complete) == (7, True)
    odd = DeadLetterFilter(fingerprint=found.groups[1].fingerprint)
    assert await inspector.dead_letters.count(STREAM, odd) == (3, True)
    assert await inspector.dead_letters.count(STREAM) == (7, True)


async def test_a_long_traceback_makes_no_other_cause(inspector: Inspector, raw: redis.Redis) -> None:
    for line in (10, 11):
        frames = "".join(f'  File "/app/deep.py", line {n}, in dive\n' for n in range(150))
        traceback = f'{frames}  File "/app/orders.py", line {line}, in ship\nValueError: no stock'
        raw.xadd(DEAD_LETTERS, {"data": "x" * 9_000, "dlq_reason": "fatal", "dlq_traceback": traceback})
    raw.xadd(DEAD_LETTERS, {"data": "x", "dlq_reason": "fatal", "dlq_traceback": frames})
    found = await inspector.dead_letters.failures(DEAD_LETTERS)
    assert [group.count for group in found.groups] == [2, 1]
    page = await inspector.dead_letters.page(DEAD_LETTERS, DeadLetterFilter(fingerprint=found.groups[0].fingerprint))
    assert len(page.items) == 2
    assert page.items[0].traceback.endswith("no stock")


async def test_whole_records_are_read_for_an_export(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [1, 2, 3])
    chosen = [letter.data async for letter in inspector.dead_letters.records(STREAM, DeadLetterFilter(text="is odd"))]
    assert chosen == [b"1", b"3"]


# --- changing -------------------------------------------------------------------------------------


async def test_a_dry_run_changes_nothing(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [1, 2, 3])
    report = await inspector.dead_letters.redrive(STREAM, dry_run=True)
    assert (report.matched, report.redriven, report.is_dry_run) == (3, 0, True)
    assert await inspector.dead_letters.purge(STREAM, dry_run=True) == 3
    assert await inspector.dead_letters.purge(STREAM, dry_run=True, limit=2) == 2
    assert await DeadLetters(client, STREAM).count() == 3


async def test_those_that_match_are_redriven_up_to_a_limit(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, list(range(6)))
    before = raw.xlen(STREAM)
    odd = DeadLetterFilter(text="is odd")
    report = await inspector.dead_letters.redrive(STREAM, odd, limit=2, per_second=1_000)
    assert (report.redriven, report.is_complete) == (2, False)
    assert raw.xlen(STREAM) == before + 2
    left = [letter.payload.value for letter in (await inspector.dead_letters.page(STREAM)).items]
    assert left == [5, 4, 2, 0]
    chosen = frozenset(letter.id for letter in (await inspector.dead_letters.page(STREAM, limit=2)).items)
    assert (await inspector.dead_letters.redrive(STREAM, DeadLetterFilter(ids=chosen))).redriven == 2


async def test_one_that_was_redriven_too_often_stays(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [2])
    await inspector.dead_letters.redrive(STREAM)
    await give_up(client, [])
    report = await inspector.dead_letters.redrive(STREAM, max_redrives=1)
    assert (report.matched, report.redriven, report.refused) == (1, 0, 1)


async def test_a_message_of_a_queue_is_redriven(client: StreamClient, inspector: Inspector) -> None:
    await dead_message(client)
    assert (await inspector.dead_letters.redrive("mail")).redriven == 1
    assert await inspector.queues.peek("mail") == ['{"to": "you"}']


async def test_a_task_is_found_by_its_id_and_redriven(client: StreamClient, inspector: Inspector) -> None:
    task_id = await dead_task(client)
    letter = await inspector.dead_letters.show("jobs", task_id)
    assert (letter.task_id, letter.task_kind, letter.error) == (task_id, "render", "ValueError")
    report = await inspector.dead_letters.redrive("jobs", DeadLetterFilter(kind="render"))
    assert report.new_ids == (task_id,)
    assert (await inspector.tasks.status("jobs", task_id)).state == "queued"


async def test_ids_are_looked_for_among_the_newest(
    client: StreamClient, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = RedisTaskQueue(client, "jobs")
    for n in range(6):
        await queue.enqueue(Task(kind="a", id=f"task-{n}"))
        await queue.pop()
        await queue.dead_letter(f"task-{n}")
    letters = (await inspector.dead_letters.page("jobs")).items
    monkeypatch.setattr(dead_letters_module, "_PAGE", 2)
    found, is_complete = await inspector.dead_letters.begin_with("jobs", "task-")
    assert (found, is_complete) == ({letter.task_id: letter.id for letter in letters}, True)
    found, is_complete = await inspector.dead_letters.begin_with("jobs", letters[0].id[:5], most=4)
    assert (found, is_complete) == ({letter.id: letter.id for letter in letters[:4]}, False)
    monkeypatch.setattr(dead_letters_module, "MAX_SCANNED", 4)
    assert (await inspector.dead_letters.show("jobs", "task-2")).id == letters[3].id
    with pytest.raises(NotFound, match="no dead letter 'task-1' among its newest 4; pass the id of its record"):
        await inspector.dead_letters.show("jobs", "task-1")
    assert (await inspector.dead_letters.show("jobs", letters[-1].id)).task_id == "task-0"


async def test_a_stream_of_a_balanced_service_is_put_back(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd("{svc-input}_dlq", {"lbs-input": '{"DataStreamName": "session"}', "dlq_reason": "max_deliveries"})
    assert (await inspector.dead_letters.redrive("{svc-input}_dlq")).redriven == 1
    [(_, fields)] = raw.xrange("svc-input")
    assert fields[b"lbs-input"] == b'{"DataStreamName": "session"}'


async def test_where_the_name_does_not_tell_one_must_say_where_to(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd("graveyard", {"data": "1", "dlq_reason": "fatal", "dlq_source": "orders"})
    with pytest.raises(ConfigurationError, match="pass the stream as `to`"):
        await inspector.dead_letters.redrive("graveyard")
    assert (await inspector.dead_letters.redrive("graveyard", to="orders")).redriven == 1
    assert raw.xlen("orders") == 1


@pytest.mark.parametrize(("present", "owner"), [("{session}", "{session}"), ("session", "session"), ("other", "")])
async def test_a_hash_tag_around_the_whole_name_is_understood_by_what_there_is(
    inspector: Inspector, raw: redis.Redis, present: str, owner: str
) -> None:
    raw.xadd("{session}_dlq", {"data": "1", "dlq_reason": "fatal"})
    raw.xadd(present, {"data": "1"})
    [found] = (await inspector.dead_letters.streams()).items
    assert found.owner == owner
    if owner:
        await inspector.dead_letters.redrive("{session}_dlq")
        assert raw.xlen(owner) == 2
    else:
        with pytest.raises(ConfigurationError, match="pass the stream as `to`"):
            await inspector.dead_letters.redrive("{session}_dlq")


async def test_a_payload_is_edited_and_redriven(client: StreamClient, inspector: Inspector, raw: redis.Redis) -> None:
    await give_up(client, [1])
    [letter] = (await inspector.dead_letters.page(STREAM)).items
    new_id = await inspector.dead_letters.redrive_edited(STREAM, letter.id, {"order": 2})
    [(_, fields)] = raw.xrange(STREAM, new_id, new_id)
    assert (fields[b"data"], fields[b"redrives"]) == (b'{"order":2}', b"1")
    with pytest.raises(NotFound):
        await inspector.dead_letters.redrive_edited(STREAM, letter.id, {"order": 2})


async def test_an_edited_payload_is_protected_again(redis_url: str) -> None:
    protection = Protection("sign", {"one": b"k" * 32})
    async with StreamClient.from_url(redis_url, protection=protection) as client:
        await give_up(client, [1])
        inspector = Inspector(client)
        [letter] = (await inspector.dead_letters.page(STREAM)).items
        new_id = await inspector.dead_letters.redrive_edited(STREAM, letter.id, 8)
        assert (await inspector.streams.entry(STREAM, new_id)).payload.value == 8


@pytest.mark.parametrize(
    ("form", "payload"),
    [
        ("protected", Protection("sign", {"one": b"k" * 32}).protect(b"1", STREAM, "")),
        ("pickle", pickle.dumps({"order": 1})),
        ("binary", b"\xff\xfe"),
    ],
    ids=["protected", "pickle", "binary"],
)
async def test_a_value_replaces_no_payload_that_it_cannot_be_written_as(
    inspector: Inspector, raw: redis.Redis, form: str, payload: bytes
) -> None:
    raw.xadd(DEAD_LETTERS, {"data": payload, "dlq_reason": "fatal"})
    [letter] = (await inspector.dead_letters.page(STREAM)).items
    assert letter.payload.form == form
    for value in ({"order": 2}, 2, None, "two"):
        with pytest.raises(ConfigurationError, match=f"of form '{form}' can only be replaced by bytes"):
            await inspector.dead_letters.redrive_edited(STREAM, letter.id, value)
    [(_, fields)] = raw.xrange(DEAD_LETTERS)
    assert fields[b"data"] == payload
    await inspector.dead_letters.redrive_edited(STREAM, letter.id, b"2")
    assert raw.xrange(STREAM)[0][1][b"data"] == b"2"


async def test_the_payload_of_a_task_is_edited(client: StreamClient, inspector: Inspector) -> None:
    task_id = await dead_task(client)
    letter = await inspector.dead_letters.show("jobs", task_id)
    assert await inspector.dead_letters.redrive_edited("jobs", letter.id, {"page": 8}) == task_id
    task = await RedisTaskQueue(client, "jobs").pop()
    assert task is not None
    assert (task.id, task.payload) == (task_id, {"page": 8})


async def test_records_chosen_by_their_ids_are_changed_without_reading_the_others(
    client: StreamClient, inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        raw.xadd(DEAD_LETTERS, {"data": "1", "dlq_reason": "fatal"}, id=f"{n + 1}000-0")
    ranges, read = list[EntryRange](), dead_letters_module.read_entries

    async def noted(client: StreamClient, key: str, wanted: EntryRange) -> Any:
        ranges.append(wanted)
        return await read(client, key, wanted)

    monkeypatch.setattr(dead_letters_module, "read_entries", noted)
    chosen = DeadLetterFilter(ids=frozenset({"3000-0", "4000-0"}))
    assert await inspector.dead_letters.count(STREAM, chosen) == (2, True)
    assert (await inspector.dead_letters.redrive(STREAM, replace(chosen, until_ms=3_000))).redriven == 1
    assert await inspector.dead_letters.purge(STREAM, chosen) == 1
    assert {(each.start, each.end) for each in ranges} == {("3000-0", "4000"), ("3000-0", "3000")}


async def test_those_that_match_are_purged(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, list(range(6)))
    assert await inspector.dead_letters.purge(STREAM, DeadLetterFilter(text="is odd"), limit=2) == 2
    assert await inspector.dead_letters.purge(STREAM) == 4
    assert await DeadLetters(client, STREAM).count() == 0


async def test_what_arrives_after_a_count_is_not_purged_or_redriven(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, [1, 2])
    newest = (await inspector.dead_letters.page(STREAM)).items[0].id
    matching = await inspector.dead_letters.as_of_now(STREAM)
    later = f"{int(newest.partition('-')[0]) + 1}-0"
    raw.xadd(DEAD_LETTERS, {"data": "3", "dlq_reason": "fatal"}, id=later)
    assert await inspector.dead_letters.count(STREAM, matching) == (2, True)
    assert (await inspector.dead_letters.redrive(STREAM, matching, limit=1)).redriven == 1
    assert await inspector.dead_letters.purge(STREAM, matching) == 1
    assert [letter.id for letter in (await inspector.dead_letters.page(STREAM)).items] == [later]
    chosen = DeadLetterFilter(ids=frozenset({later}))
    assert await inspector.dead_letters.as_of_now(STREAM, chosen) == chosen


async def test_an_empty_id_is_that_of_no_dead_letter(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [1])
    with pytest.raises(NotFound):
        await inspector.dead_letters.show(STREAM, "")
    assert await inspector.dead_letters.purge(STREAM, DeadLetterFilter(ids=frozenset({""}))) == 0


async def test_causes_are_looked_for_among_the_newest_whatever_matches(
    client: StreamClient, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give_up(client, list(range(20)))
    monkeypatch.setattr(dead_letters_module, "_PAGE", 2)
    found = await inspector.dead_letters.failures(STREAM, DeadLetterFilter(reason="no such reason"), most=10)
    assert (found.groups, found.read, found.is_complete) == ((), 0, False)
    found = await inspector.dead_letters.failures(STREAM, DeadLetterFilter(text="is odd"), most=10)
    assert (found.read, found.is_complete) == (10, False)


@pytest.mark.parametrize(
    ("payload", "is_editable"),
    [
        (b'{"order": 1, "note": "\xc3\xa9", "deep": [null, 1.5, 12345678901234567890123]}', True),
        (b"text", True),
        (MsgpackSerializer().encode({"order": 1}), True),
        (MsgpackSerializer().encode({"order": 1, "blob": b"\x00\xff"}), False),
        (MsgpackSerializer().encode({1: "a key that is a number"}), False),
        (b"\xff\xfe", False),
        (b'"' + b"x" * 3_000 + b'"', False),
    ],
)
async def test_a_payload_is_editable_if_json_can_represent_all_of_it(
    inspector: Inspector, raw: redis.Redis, payload: bytes, is_editable: bool
) -> None:
    raw.xadd(DEAD_LETTERS, {"data": payload, "dlq_reason": "fatal"})
    [letter] = (await inspector.dead_letters.page(STREAM)).items
    assert letter.is_editable == is_editable


async def test_a_hostile_record_is_shown_and_harms_nobody(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd(DEAD_LETTERS, {"data": b"\xff" * 100, "dlq_reason": b"\xfe<b>", "dlq_attempts": "9" * 500})
    raw.xadd(DEAD_LETTERS, {"data": msgspec.msgpack.encode({"a": 1}), "dlq_time": "soon", b"\xff": "x"})
    newest, oldest = (await inspector.dead_letters.page(DEAD_LETTERS)).items
    assert (newest.payload.value, newest.dead_at_ms > 0) == ({"a": 1}, True)
    assert (oldest.attempts, oldest.payload.form) == (0, "binary")


def test_numbers_of_any_length_tell_no_causes_apart() -> None:
    for one, other in (
        ("order 12-foo", "order 7-foo"),
        ("1" * 299 + "g", "2" * 299 + "g"),
        ("0x1f", "0xab1"),
        ("id a1-b2", "id c9"),
    ):
        assert fingerprint("fatal", "E", one, "") == fingerprint("fatal", "E", other, "")
    assert fingerprint("fatal", "E", "feed me", "") != fingerprint("fatal", "E", "fee me", "")
