"""Streams are found and recognised, and their entries are shown without harm."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
import redis

import penstock.ops.streams as streams_module
import penstock.redis.reading as reading_module
from penstock import (
    DeadLetters,
    Protection,
    RedisMessageQueue,
    StreamClient,
    StreamProducer,
)
from penstock.errors import ConfigurationError, NotFound, PermissionDenied, ServerBusy
from penstock.ops import GroupKind, Inspector, Sampler, StreamKind
from penstock.redis.translate import error_reply
from penstock.serializers import MsgpackSerializer
from penstock.tasks import RedisTaskQueue, Task
from tests.ops.stage import GROUP, STREAM, add, give_up, read_as

pytestmark = pytest.mark.usefixtures("default_server")


# --- which there are ------------------------------------------------------------------------------


async def test_streams_of_all_parts_are_recognised(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, [1])
    queue = RedisMessageQueue("mail", client=client, enable_completed_queue=True)
    await queue.publish("hello")
    async with queue.process_message():
        pass
    tasks = RedisTaskQueue(client, "jobs")
    await tasks.enqueue(Task(kind="render", priority="high"))
    await tasks.pop()
    raw.xgroup_create("svc-input", "svc-group", "0", mkstream=True)
    raw.xadd("graveyard", {"data": "x", "dlq_reason": "fatal"})
    found = {info.name: (info.kind, info.owner) for info in (await inspector.streams.page()).items}
    assert found == {
        "orders": (StreamKind.STREAM, ""),
        "orders_dlq": (StreamKind.DEAD_LETTERS, "orders"),
        "mail": (StreamKind.QUEUE, "mail"),
        "mail::completed": (StreamKind.QUEUE_LOG, "mail"),
        "jobs.tasks": (StreamKind.TASKS, "jobs"),
        "jobs.tasks.high": (StreamKind.TASKS, "jobs"),
        "svc-input": (StreamKind.SERVICE, "svc"),
        "graveyard": (StreamKind.DEAD_LETTERS, ""),
    }


async def test_pages_hold_so_many_and_go_on(inspector: Inspector, raw: redis.Redis) -> None:
    for n in range(7):
        add(raw, 1, f"s{n}")
    raw.set("no stream", "1")
    names, cursor = list[str](), ""
    while True:
        page = await inspector.streams.page(limit=3, cursor=cursor)
        assert len(page.items) <= 3
        names += [info.name for info in page.items]
        cursor = page.cursor
        if not cursor:
            break
    assert names == [f"s{n}" for n in range(7)]
    assert [info.name for info in (await inspector.streams.page("s[12]")).items] == ["s1", "s2"]
    assert (await inspector.streams.page(kind=StreamKind.QUEUE)).items == ()


async def test_a_page_of_a_kind_ends_after_so_many_of_others(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(9):
        add(raw, 1, f"s{n}")
    raw.xgroup_create("s6", "queue", "0")
    monkeypatch.setattr(streams_module, "MAX_PER_PAGE", 4)
    found = [await inspector.streams.page(kind=StreamKind.QUEUE, limit=2, cursor=cursor) for cursor in ("", "s3", "s7")]
    assert [([info.name for info in page.items], page.cursor) for page in found] == [
        ([], "s3"),
        (["s6"], "s7"),
        ([], ""),
    ]
    assert [len((await inspector.streams.page(limit=limit)).items) for limit in (3, 9)] == [3, 9]


async def test_queues_and_services_come_in_pages(client: StreamClient, inspector: Inspector, raw: redis.Redis) -> None:
    for n in range(5):
        add(raw, 1, f"mail-{n}")
        raw.xgroup_create(f"mail-{n}", "queue", "0")
        await RedisTaskQueue(client, f"jobs-{n}").enqueue(Task(kind="render"))
        raw.xgroup_create(f"svc-{n}-input", f"svc-{n}-group", "0", mkstream=True)
    for noun, names in ((inspector.queues, "mail"), (inspector.tasks, "jobs"), (inspector.services, "svc")):
        everything, cursor, found = await noun.all(), "", list[object]()
        while True:
            page = await noun.page(limit=2, cursor=cursor)
            assert len(page.items) <= 2
            found += page.items
            cursor = page.cursor
            if not cursor:
                break
        assert [each.name for each in everything] == [f"{names}-{n}" for n in range(5)]
        assert [str(each).partition("oldest")[0] for each in found] == [
            str(each).partition("oldest")[0] for each in everything
        ]


async def test_a_client_with_a_prefix_sees_its_own_streams_by_their_names(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url, prefix="shop") as client:
        await StreamProducer(client, STREAM).push(1)
        add(raw, 1, "elsewhere")
        inspector = Inspector(client)
        assert await inspector.streams.names() == [STREAM]
        assert (await inspector.streams.info(STREAM)).length == 1
    assert raw.exists("shop_orders")


async def test_names_that_no_list_can_show_are_left_out(inspector: Inspector, raw: redis.Redis) -> None:
    for name in (b"\xff\xfe", b"two\nlines", b"x" * 600, b"odd{brace"):
        raw.xadd(name, {"data": "x"})
    assert await inspector.streams.names() == ["odd{brace"]
    assert (await inspector.overview()).totals.streams == 1


async def test_info_has_the_numbers_of_a_stream(client: StreamClient, inspector: Inspector, raw: redis.Redis) -> None:
    await give_up(client, [1, 2])
    ids = add(raw, 3)
    read_as(raw, "someone", 1)
    info = await inspector.streams.info(STREAM)
    assert (info.length, info.last_id, info.pending, info.dead_letters) == (5, ids[-1], 1, 2)
    assert info.dead_letters_stream == "orders_dlq"
    assert info.memory_bytes
    assert info.lag is not None
    assert (info.lag.count, info.last_added_at is not None) == (2, True)
    with pytest.raises(NotFound, match="stream 'nothing' does not exist"):
        await inspector.streams.info("nothing")


async def test_dead_letters_count_once_whether_or_not_the_pattern_matches_their_stream(
    client: StreamClient, inspector: Inspector, raw: redis.Redis
) -> None:
    await give_up(client, [1, 2])
    raw.xgroup_create("mail", "queue", "0", mkstream=True)
    raw.xadd("mail::dlq", {"data": "x"})
    queue = RedisTaskQueue(client, "jobs")
    await queue.enqueue(Task(kind="render", id="task-1"))
    await queue.pop()
    await queue.dead_letter("task-1", "fatal")
    counts = {
        match: (await inspector.overview(match)).totals.dead_letters
        for match in ("orders", "orders_dlq", "orders*", "mail", "jobs.tasks", "jobs.*", "*", "nothing")
    }
    assert counts == {
        "orders": 2, "orders_dlq": 2, "orders*": 2, "mail": 1, "jobs.tasks": 1, "jobs.*": 1, "*": 4, "nothing": 0,
    }  # fmt: skip


async def test_a_key_that_is_no_stream_is_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    raw.set("text", "1")
    with pytest.raises(NotFound):
        await inspector.streams.info("text")


async def test_a_group_that_nobody_reads_through_is_a_position(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 5)
    raw.xgroup_create(STREAM, "nightly", ids[2])
    raw.xgroup_create(STREAM, "penstock-archive", ids[3])
    raw.xgroup_create(STREAM, "new", "0")
    kinds = {group.name: group.kind for group in await inspector.groups.of(STREAM)}
    assert kinds == {
        "nightly": GroupKind.POSITION, "penstock-archive": GroupKind.ARCHIVE, "new": GroupKind.CONSUMERS,
    }  # fmt: skip
    found = {position.group: position.lag.count for position in await inspector.groups.positions()}
    assert found == {"nightly": 2, "penstock-archive": 1}


async def test_the_overview_sums_up(client: StreamClient, inspector: Inspector, raw: redis.Redis) -> None:
    await give_up(client, [1, 2, 3])
    add(raw, 4)
    read_as(raw, "someone", 1)
    await RedisTaskQueue(client, "jobs").enqueue(Task(kind="render"))
    overview = await inspector.overview()
    totals = overview.totals
    assert (totals.pending, totals.dead_letters, totals.lag) == (1, 3, 4)
    assert [queue.name for queue in overview.task_queues] == ["jobs"]
    assert overview.servers[0].used_memory > 0


# --- entries --------------------------------------------------------------------------------------


async def test_entries_come_newest_or_oldest_first_and_in_pages(inspector: Inspector, raw: redis.Redis) -> None:
    ids = add(raw, 5)
    newest = await inspector.streams.entries(STREAM, limit=2)
    assert [entry.id for entry in newest.items] == ids[:2:-1]
    more = await inspector.streams.entries(STREAM, limit=10, cursor=newest.cursor)
    assert [entry.id for entry in more.items] == ids[2::-1]
    assert more.cursor == ""
    oldest = await inspector.streams.entries(STREAM, newest_first=False, limit=2)
    assert [entry.id for entry in oldest.items] == ids[:2]


async def test_entries_are_found_by_time(inspector: Inspector, raw: redis.Redis) -> None:
    for second in range(5):
        raw.xadd(STREAM, {"data": second}, id=f"{1_700_000_000_000 + second * 1000}-0")
    page = await inspector.streams.entries(
        STREAM, start=datetime.fromtimestamp(1_700_000_001, UTC), end=1_700_000_003_000, newest_first=False
    )
    assert [entry.payload.value for entry in page.items] == [1, 2, 3]
    with pytest.raises(ConfigurationError, match="not a stream id"):
        await inspector.streams.entries(STREAM, start="yesterday")


async def test_a_text_is_searched_for_in_all_values(inspector: Inspector, raw: redis.Redis) -> None:
    add(raw, 20)
    raw.xadd(STREAM, {"data": "x" * 10_000 + "needle"})
    raw.xadd(STREAM, {"data": "{}", "note": "a needle too"})
    page = await inspector.streams.entries(STREAM, text="needle", limit=10)
    assert [entry.size for entry in page.items] == [14, 10_006]


async def test_of_a_long_value_only_the_beginning_is_read(inspector: Inspector, raw: redis.Redis) -> None:
    raw.xadd(STREAM, {"data": b'"' + b"x" * 1_000_000 + b'"'})
    sent = raw.info("stats")["total_net_output_bytes"]
    [entry] = (await inspector.streams.entries(STREAM)).items
    assert raw.info("stats")["total_net_output_bytes"] - sent < 100_000
    [field] = entry.fields
    assert (len(field.value), field.size, field.is_cut) == (4_096, 1_000_002, True)
    assert entry.payload.form == "text"
    assert "1000002 bytes" in entry.payload.note
    whole = await inspector.streams.value(STREAM, entry.id)
    assert len(whole) == 1_000_002


async def test_entries_of_megabytes_pass_through_no_script_and_come_one_by_one(
    inspector: Inspector, raw: redis.Redis
) -> None:
    values = [b"x" * 3_000_000 + word for word in (b"first", b"needle", b"last")]
    ids = [add(raw, 1, data=value)[0] for value in values]
    found, cursor = list[str](), ""
    while True:
        page = await inspector.streams.entries(STREAM, cursor=cursor, max_value_bytes=10)
        found += [entry.id for entry in page.items]
        assert [(field.value, field.size) for entry in page.items for field in entry.fields] in (
            [], [(b"x" * 10, len(values[ids.index(found[-1])]))],
        )  # fmt: skip
        cursor = page.cursor
        if not cursor:
            break
    assert found == ids[::-1]
    page = await inspector.streams.entries(STREAM, text="needle", newest_first=False)
    assert (page.items, page.cursor) == ((), ids[0])
    page = await inspector.streams.entries(STREAM, text="needle", newest_first=False, cursor=page.cursor)
    assert [entry.id for entry in page.items] == ids[1:2]
    one = await inspector.streams.entry(STREAM, ids[2], max_value_bytes=20)
    assert (one.size, len(one.fields[0].value)) == (3_000_004, 20)


async def test_entries_of_megabytes_are_not_read_to_look_at_their_stream(
    inspector: Inspector, raw: redis.Redis
) -> None:
    for _ in range(3):
        add(raw, 1, data=b"x" * 5_000_000)
    read_as(raw, "someone", 1)
    calls = raw.info("commandstats")
    info = await inspector.streams.info(STREAM)
    after = raw.info("commandstats")
    for command in ("xrange", "xinfo|stream", "xinfo"):
        assert after.get(f"cmdstat_{command}", {}).get("calls") == calls.get(f"cmdstat_{command}", {}).get("calls")
    assert (info.length, info.pending, info.first_id, info.has_huge_entries) == (3, 1, "", True)
    assert info.lag is not None
    assert info.lag.count == 2
    assert (await inspector.retention.report(STREAM)).finished == 0
    assert (await Sampler(inspector).sample()).totals.lag == 2


@pytest.mark.parametrize(
    ("data", "form", "value"),
    [
        (b'{"order": 7}', "json", {"order": 7}),
        (MsgpackSerializer().encode({"order": 7}), "msgpack", {"order": 7}),
        ("Grüße, \x1b[31mrot".encode(), "text", "Grüße, \x1b[31mrot"),
        (b"\xff\xfe\x00\xc1", "binary", None),
        (pickle.dumps({"order": 7}), "pickle", None),
        (b"[" * 100_000, "text", "[" * 100_000),
    ],
)
async def test_payloads_are_decoded_where_that_is_safe(
    inspector: Inspector, raw: redis.Redis, data: bytes, form: str, value: object
) -> None:
    entry_id = raw.xadd(STREAM, {"data": data}).decode()
    entry = await inspector.streams.entry(STREAM, entry_id)
    assert (entry.payload.form, entry.payload.value) == (form, value)


async def test_a_protected_payload_is_shown_to_whoever_has_the_key(redis_url: str) -> None:
    protection = Protection("sign", {"one": b"k" * 32})
    async with StreamClient.from_url(redis_url, protection=protection) as client:
        await StreamProducer(client, STREAM).push({"order": 7})
        [entry] = (await Inspector(client).streams.entries(STREAM)).items
        assert entry.payload.value == {"order": 7}
    async with StreamClient.from_url(redis_url) as client:
        [entry] = (await Inspector(client).streams.entries(STREAM)).items
        assert (entry.payload.form, entry.payload.value) == ("protected", None)


async def test_an_entry_that_is_not_there_is_not_found(inspector: Inspector, raw: redis.Redis) -> None:
    [entry_id] = add(raw, 1)
    with pytest.raises(NotFound, match="has no entry 1-1"):
        await inspector.streams.entry(STREAM, "1-1")
    with pytest.raises(NotFound, match="has no field 'nothing'"):
        await inspector.streams.value(STREAM, entry_id, "nothing")
    with pytest.raises(ConfigurationError):
        await inspector.streams.entry(STREAM, "x")


async def test_an_inspector_from_a_url_closes_its_client(redis_url: str) -> None:
    async with Inspector.from_url(redis_url) as inspector:
        assert await inspector.streams.names() == []
    with pytest.raises(Exception, match="is closed"):
        await inspector.streams.names()


async def test_names_are_remembered_for_as_long_as_one_says(client: StreamClient, raw: redis.Redis) -> None:
    inspector = Inspector(client, names_max_age_s=600)
    assert await inspector.streams.names() == []
    add(raw, 1)
    assert await inspector.streams.names() == []
    assert await Inspector(client).streams.names() == [STREAM]


async def test_dead_letters_counted_here_are_those_of_the_stream(client: StreamClient, inspector: Inspector) -> None:
    await give_up(client, [1, 2, 3])
    assert (await inspector.streams.info(STREAM)).dead_letters == await DeadLetters(client, STREAM).count() == 3
    assert (await inspector.groups.info(STREAM, GROUP)).pending == 0


async def test_no_stream_is_left_out_however_many_there_are(inspector: Inspector, raw: redis.Redis) -> None:
    pipeline = raw.pipeline(transaction=False)
    for n in range(2_005):
        pipeline.xadd(f"stream-{n:04}", {"data": "{}"})
    pipeline.xgroup_create("stream-2004", GROUP, "0")
    pipeline.execute()
    overview = await inspector.overview()
    assert (overview.totals.streams, overview.totals.lag, overview.names) == (2_005, 1, 2_005)
    assert [(lag.stream, lag.count) for lag in await inspector.groups.lags()] == [("stream-2004", 1)]
    assert [each.stream for each in await inspector.queues.all()] == []


@pytest.mark.every_server
async def test_a_user_who_may_not_look_does_not_see_an_empty_server(redis_url: str, raw: redis.Redis) -> None:
    add(raw, 1)
    raw.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-evalsha")
    try:
        async with StreamClient.from_url(redis_url, username="limited", password="secret") as client:
            inspector = Inspector(client)
            for look in (inspector.overview, inspector.streams.page, inspector.dead_letters.streams):
                with pytest.raises(PermissionDenied):
                    await look()
            raw.execute_command("ACL", "SETUSER", "limited", "+evalsha", "resetkeys", "~others*")
            assert not (await inspector.streams.page()).items
            with pytest.raises(PermissionDenied):
                await inspector.streams.info(STREAM)
            add(raw, 1, "others")
            assert [stream.name for stream in (await inspector.streams.page()).items] == ["others"]
    finally:
        raw.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize("text", ["LOADING Redis is loading the dataset in memory", "BUSY Redis is busy"])
async def test_a_server_that_answers_nothing_does_not_look_empty(
    inspector: Inspector, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    add(raw, 1)

    async def refuse(_: object, questions: Sequence[object]) -> list[object]:
        return [error_reply(text)] * len(questions)

    monkeypatch.setattr(reading_module, "read_many", refuse)
    for look in (inspector.overview, inspector.dead_letters.streams, inspector.groups.lags):
        with pytest.raises(ServerBusy):
            await look()
