"""Ranges read from real servers, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import redis

from penstock.errors import DataLost
from penstock.redis.aio import Reply
from penstock.spark.source import redis_log
from penstock.spark.source.catalogue import StreamSelection, beginning, look
from penstock.spark.source.offsets import IdRange, Position
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitioning import range_between
from penstock.spark.source.redis_log import RedisLog, Scanner
from penstock.sync import StreamClient
from penstock.sync.redis.reading import Question

pytestmark = pytest.mark.every_server


@pytest.fixture
def client(redis_url: str) -> Iterator[StreamClient]:
    with StreamClient.from_url(redis_url) as made:
        yield made


def _fill(raw: redis.Redis, stream: str, count: int, first_ms: int = 1_000, step_ms: int = 1) -> list[str]:
    pipe = raw.pipeline(transaction=False)
    made = [f"{first_ms + i * step_ms}-{i % 3}" for i in range(count)]
    for entry_id in made:
        pipe.xadd(stream, {"data": entry_id}, id=entry_id)
    pipe.execute()
    return made


def _ids(scanner: Scanner, ranges: list[IdRange]) -> list[str]:
    return [entry[0].decode() for _, entries in scanner.pages(ranges) for entry in entries]


def test_a_range_is_read_page_by_page(client: StreamClient, raw: redis.Redis) -> None:
    made = _fill(raw, "orders", 2_345)
    assert _ids(Scanner(client, fetch_size=100), [IdRange("orders", "0-0", made[-1])]) == made


def test_both_ends_are_respected(client: StreamClient, raw: redis.Redis) -> None:
    made = _fill(raw, "orders", 50)
    assert _ids(Scanner(client, fetch_size=7), [IdRange("orders", made[9], made[29])]) == made[10:30]


def test_short_ranges_are_read_together_in_the_order_of_the_ranges(client: StreamClient, raw: redis.Redis) -> None:
    made = {f"s{i}": _fill(raw, f"s{i}", i) for i in range(80)}
    ranges = [IdRange(name, "0-0", "9999-0", rows=len(ids)) for name, ids in made.items()]
    read = [(name, [entry[0].decode() for entry in entries]) for name, entries in Scanner(client).pages(ranges)]
    assert dict(read) == {name: ids for name, ids in made.items() if ids}
    assert [name for name, _ in read] == [name for name, ids in made.items() if ids]


@pytest.mark.acl(stream=("steady", "burst"))
def test_a_plan_covers_everything_once_whatever_the_density(
    client: StreamClient, raw: redis.Redis, redis_url: str
) -> None:
    steady = _fill(raw, "steady", 5_000)
    burst = _fill(raw, "burst", 100, step_ms=1_000) + _fill(raw, "burst", 5_000, first_ms=200_000)
    ranges = []
    for name, state in look(client, ["steady", "burst"]).items():
        assert state is not None
        ranges.append(range_between(name, beginning(state), Position(state.last_id, state.added), state))
    options = {"url": redis_url, "streams": "steady,burst", "minPartitions": "8", "maxRowsPerPartition": "1000000"}
    partitions = RedisLog(SourceOptions.parse(options)).partitions(ranges)
    assert 7 <= len(partitions) <= 9
    sizes = [len(_ids(Scanner(client), list(chosen))) for chosen in partitions]
    assert sum(sizes) == len(steady) + len(burst)
    assert max(sizes) < 2.5 * sum(sizes) / len(sizes)
    read = list(itertools.chain.from_iterable(_ids(Scanner(client), list(chosen)) for chosen in partitions))
    assert sorted(read) == sorted(steady + burst)


def test_trimming_behind_the_reader_does_not_matter(client: StreamClient, raw: redis.Redis) -> None:
    made = _fill(raw, "orders", 100)
    pages = Scanner(client, fetch_size=10).pages([IdRange("orders", "0-0", made[-1], 100, 0)])
    read = [entry[0].decode() for entry in next(pages)[1]]
    raw.xtrim("orders", minid=made[9], approximate=False)  # the last one that was read is still there
    read += [entry[0].decode() for _, entries in pages for entry in entries]
    assert read == made


def test_trimming_ahead_of_the_reader_is_an_error(client: StreamClient, raw: redis.Redis) -> None:
    made = _fill(raw, "orders", 100)
    pages = Scanner(client, fetch_size=10).pages([IdRange("orders", "0-0", made[-1], 100, 0)])
    next(pages)
    raw.xtrim("orders", minid=made[50], approximate=False)
    with pytest.raises(DataLost, match="orders"):
        list(pages)


def test_or_a_warning(client: StreamClient, raw: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    made = _fill(raw, "orders", 100)
    pages = Scanner(client, fetch_size=10, fail_on_data_loss=False).pages([IdRange("orders", "0-0", made[-1], 100, 0)])
    next(pages)
    raw.xtrim("orders", minid=made[50], approximate=False)
    assert [entry[0].decode() for _, entries in pages for entry in entries] == made[50:]
    assert "continuing without them" in caplog.text


def test_patterns_find_streams_and_nothing_else(client: StreamClient, raw: redis.Redis) -> None:
    for name in ("orders:1", "orders:2", "payments"):
        _fill(raw, name, 1)
    raw.set("orders:text", "x")
    assert StreamSelection(glob="orders:*").find(client) == ["orders:1", "orders:2"]
    assert StreamSelection(regex=r"orders:\d|pay.*").find(client) == ["orders:1", "orders:2", "payments"]


@pytest.mark.acl(prefix=("shop",))
def test_a_prefix_is_part_of_the_key_and_not_of_the_name(redis_url: str, raw: redis.Redis) -> None:
    _fill(raw, "shop_orders", 3)
    _fill(raw, "other_orders", 3)
    with StreamClient.from_url(redis_url, prefix="shop") as client:
        assert StreamSelection(glob="*").find(client) == ["orders"]
        assert len(_ids(Scanner(client), [IdRange("orders", "0-0", "9999-0")])) == 3


def test_trimming_between_the_questions_of_a_page_is_an_error(
    client: StreamClient, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _fill(raw, "orders", 100)

    def one_by_one(client: StreamClient, questions: list[Question]) -> list[Reply]:
        replies = []
        for key, command in questions:
            replies.append(client.call(key, *command))
            raw.xtrim("orders", minid=made[50], approximate=False)
        return replies

    monkeypatch.setattr(redis_log, "read_many", one_by_one)
    with pytest.raises(DataLost, match="orders"):
        _ids(Scanner(client, fetch_size=10), [IdRange("orders", made[9], made[-1], 90, 10)])
