"""However large entries are, counting and trimming them holds the server up for a moment only."""

from __future__ import annotations

import pytest
import redis

from penstock import ConsumerGroup, StreamClient, StreamProducer
from penstock.delivery.group_commands import GroupCommands, Parking
from penstock.redis.retry import Repeat
from tests.helpers.aio import outcomes, start
from tests.helpers.commandstats import calls
from tests.streams.stage import GROUP, STREAM, pending_ids, read_as

counts_itself = pytest.mark.servers("7.0", "valkey")  # how many entries were added and read

LARGE = b"x" * 300_000
FEW = 8  # large entries that one script may read, or free


@pytest.fixture
async def group(client: StreamClient) -> ConsumerGroup:
    made = ConsumerGroup(client, STREAM, GROUP)
    await made.ensure()
    return made


def add(raw: redis.Redis, count: int, data: bytes) -> None:
    pipeline = raw.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(STREAM, {"data": data})
    pipeline.execute()


def scripts(raw: redis.Redis) -> int:
    return calls(raw, "evalsha") + calls(raw, "eval")


async def test_no_script_reads_more_than_a_few_large_entries_to_count_them(
    raw: redis.Redis, group: ConsumerGroup
) -> None:
    add(raw, 45, LARGE)
    add(raw, 200, b"small")
    add(raw, 40, LARGE)
    read_as(raw, "someone", 50)
    raw.xtrim(STREAM, maxlen=280, approximate=False)  # so that the server's own numbers do not tell
    before = scripts(raw)
    lag = await group.lag()
    assert (lag.count, lag.is_exact) == (235, True)
    assert scripts(raw) - before >= 40 / FEW, "there are forty large entries towards either end"


async def test_a_long_backlog_is_counted_from_the_end_that_is_near(raw: redis.Redis, group: ConsumerGroup) -> None:
    add(raw, 12_010, b"small")
    read_as(raw, "someone", 10)
    raw.xtrim(STREAM, maxlen=12_005, approximate=False)
    before = scripts(raw)
    lag = await group.lag()
    assert (lag.count, lag.is_exact) == (12_000, True)
    assert scripts(raw) - before <= 4, "a first look, one step from each end, and the script may have to be sent"


async def test_the_first_large_entries_behind_small_ones_are_few(raw: redis.Redis, group: ConsumerGroup) -> None:
    for _ in range(5):
        add(raw, 1, b"small")
        add(raw, 8, LARGE)
    raw.xtrim(STREAM, maxlen=44, approximate=False)
    read_as(raw, "someone", 22)
    before = scripts(raw)
    assert (await group.lag()).count == 22
    assert scripts(raw) - before >= 22 / 4


async def test_small_entries_are_counted_by_few_scripts(raw: redis.Redis, group: ConsumerGroup) -> None:
    add(raw, 8_010, b"small")
    read_as(raw, "someone", 10)
    raw.xtrim(STREAM, maxlen=8_005, approximate=False)
    before = scripts(raw)
    assert (await group.lag()).count == 8_000
    assert scripts(raw) - before <= 6


@counts_itself
async def test_a_stream_of_which_nothing_was_removed_is_not_read_to_count_it(
    raw: redis.Redis, group: ConsumerGroup
) -> None:
    add(raw, 30, LARGE)
    read_before = calls(raw, "xrange")
    assert (await group.lag()).count == 30
    read_as(raw, "someone", 10)
    assert (await group.lag()).count == 20
    assert calls(raw, "xrange") - read_before <= 2  # to tell how old the first one is


@counts_itself
async def test_of_a_backlog_that_is_too_large_to_be_counted_the_server_is_believed(
    raw: redis.Redis, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.janitor._MAX_STEPS", 3)
    add(raw, 50, LARGE)
    read_as(raw, "someone", 25)
    raw.xtrim(STREAM, maxlen=49, approximate=False)
    lag = await group.lag()
    assert (lag.count, lag.is_exact) == (25, False)
    stats = await group.stats()
    assert (stats.lag, stats.is_lag_exact) == (25, False)


@pytest.mark.servers("6.2")
async def test_on_a_server_that_cannot_tell_the_lag_is_an_upper_bound(
    raw: redis.Redis, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.janitor._MAX_STEPS", 3)
    add(raw, 50, LARGE)
    read_as(raw, "someone", 25)
    lag = await group.lag()
    assert 25 < lag.count < 50  # without what was counted from the beginning
    assert not lag.is_exact


async def test_trimming_everything_reads_nothing_and_frees_few_large_entries_at_a_time(
    raw: redis.Redis, group: ConsumerGroup
) -> None:
    add(raw, 100, LARGE)
    raw.xack(STREAM, GROUP, *read_as(raw, "someone", 90))
    before, read_before = scripts(raw), calls(raw, "xrange")
    assert await group.trim(0) == 90
    assert raw.xlen(STREAM) == 10
    assert calls(raw, "xrange") == read_before
    assert scripts(raw) - before >= 90 / (2 * FEW)


async def test_history_is_kept_to_the_number_whatever_its_size(raw: redis.Redis, group: ConsumerGroup) -> None:
    for _ in range(5):
        add(raw, 7, b"small")
        add(raw, 3, LARGE)
    ids = read_as(raw, "someone", 40)
    raw.xack(STREAM, GROUP, *ids)
    assert await group.trim(12) == 28
    assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)][:12] == ids[28:]


async def test_room_for_one_message_frees_few_large_entries(
    client: StreamClient, raw: redis.Redis, group: ConsumerGroup
) -> None:
    add(raw, 100, LARGE)
    raw.xack(STREAM, GROUP, *read_as(raw, "someone", 90))
    await StreamProducer(client, STREAM, max_len=100).push("one more")
    assert 100 - 2 * FEW < raw.xlen(STREAM) <= 100


@counts_itself
async def test_renewing_leases_does_not_read_what_is_held(client: StreamClient, raw: redis.Redis) -> None:
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    add(raw, 20, LARGE)
    commands = GroupCommands(client, client.keys(STREAM), GROUP, "someone", "graveyard")
    held = read_as(raw, "someone")
    raw.xtrim(STREAM, maxlen=19, approximate=False)
    before = calls(raw, "xrange")
    await commands.begin([(entry_id, 1, 1) for entry_id in held])
    keys = [client.keys(STREAM).stream]
    await client.run("streams/renew", keys, [GROUP, "someone", "", 1_000, *held], Repeat.IDEMPOTENT)
    await commands.park([Parking(entry_id, 10, 1, 1) for entry_id in held])
    assert calls(raw, "xrange") - before == 3, "of the one that is gone"
    assert pending_ids(raw) == held, "none was claimed that is gone, and dropped for it"
    raw.xdel(STREAM, held[5])
    await commands.begin([(entry_id, 1, 1) for entry_id in held])
    assert pending_ids(raw) == held


async def test_no_script_hands_out_more_than_a_few_large_entries_again(client: StreamClient, raw: redis.Redis) -> None:
    await ConsumerGroup(client, STREAM, GROUP).ensure()
    add(raw, 20, LARGE)
    held = read_as(raw, "someone")
    commands = GroupCommands(client, client.keys(STREAM), GROUP, "me", "graveyard")
    cursor, recovered = "-", list[str]()
    while True:
        cursor, claims, missing = await commands.recover(0, 100, cursor, 1_000)
        recovered += [claim.id for claim in claims]
        assert (len(claims) <= FEW, missing) == (True, [])
        if not claims:
            break
    assert recovered == held
    before = scripts(raw)
    claims, missing = await commands.take([*held, "1-1"], is_own_read=True)
    assert ([claim.id for claim in claims], missing) == (held, [])
    assert scripts(raw) - before >= 20 / FEW
    await commands.park([Parking(entry_id, 0, 1, 1) for entry_id in held])
    due = list[str]()
    while len(due) < 20:
        wait_ms, claims, _ = await commands.take_due(100)
        due += [claim.id for claim in claims]
        assert len(claims) <= FEW
        assert (wait_ms is None) == (len(due) == 20), "until all are handed out, the next one is due"
    assert due == held


async def test_no_script_writes_more_than_a_few_large_messages(client: StreamClient, raw: redis.Redis) -> None:
    producer = StreamProducer(client, STREAM)
    await producer.push("the script is loaded")
    before = scripts(raw)
    ids = await producer.push_many(["x" * 300_000] * 20 + ["small"] * 20)
    assert scripts(raw) - before >= 20 / FEW
    assert len(set(await outcomes([start(producer.push, "x" * 300_000) for _ in range(20)]))) == 20
    assert scripts(raw) - before >= 40 / FEW
    assert [entry_id.decode() for entry_id, _ in raw.xrange(STREAM)][1:41] == ids, "in their order"
    assert raw.xlen(STREAM) == 61
    before = scripts(raw)
    await producer.push_many(["small"] * 200)
    assert scripts(raw) - before == 1
