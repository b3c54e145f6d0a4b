from __future__ import annotations

import itertools

import redis
from hypothesis import given
from hypothesis import strategies as st

from penstock import ids
from penstock.spark.source.offsets import IdRange
from penstock.spark.source.partitioning import (
    Probe,
    cut,
    cut_points,
    cuts_by_density,
    enough_partitions,
    pack,
    probe_times,
    wanted_pieces,
)
from penstock.sync import StreamClient

_IDS = st.tuples(st.integers(0, 10_000), st.integers(0, 50)).map(lambda pair: f"{pair[0]}-{pair[1]}")


@given(_IDS, _IDS, st.lists(_IDS, max_size=8))
def test_the_pieces_of_a_range_are_the_range(a: str, b: str, cuts: list[str]) -> None:
    after, upto = sorted((a, b), key=ids.parse)
    pieces = cut(IdRange("s", after, upto, 100, 5), cuts)
    assert (pieces[0].after, pieces[-1].upto) == (after, upto)
    assert all(left.upto == right.after for left, right in itertools.pairwise(pieces))
    assert pieces[0].rank == 5


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 300_000))
def test_every_range_is_in_exactly_one_partition(rows: list[int], least: int, most: int) -> None:
    ranges = [IdRange(f"s{i}", "0-0", "9-0", count) for i, count in enumerate(rows)]
    packed = pack(ranges, most, least)
    assert sorted(itertools.chain.from_iterable(packed), key=lambda r: r.stream) == sorted(
        ranges, key=lambda r: r.stream
    )
    assert packed == pack(ranges, most, least)
    assert len(packed) >= min(least, len(ranges))


def test_a_thousand_small_streams_go_into_few_partitions() -> None:
    packed = pack([IdRange(f"s{i}", "0-0", "9-0", 1_000) for i in range(1_000)], 250_000, 1)
    assert len(packed) == 4
    assert {sum(piece.rows for piece in chosen) for chosen in packed} == {250_000}


def test_empty_ranges_need_no_task() -> None:
    assert pack([IdRange("s", "9-0", "9-0"), IdRange("t", "9-0", "3-0")], 10, 4) == []


def test_a_steady_stream_is_cut_evenly() -> None:
    probes = [Probe(ms, 10, 10) for ms in probe_times("0-0", "1000-0", 32)]
    assert [ids.parse(entry_id)[0] for entry_id in cut_points("0-0", "1000-0", probes, 4)] == [249, 499, 749]


def test_a_burst_is_cut_by_its_entries_and_not_by_its_time() -> None:
    # 100 entries a ms in the last tenth, one every 10 ms before.
    probes = [Probe(ms, 32, 1) if ms >= 900 else Probe(ms, 32, 320) for ms in range(0, 1000, 10)]
    cuts = [ids.parse(entry_id)[0] for entry_id in cut_points("0-0", "999-0", probes, 4)]
    assert all(ms >= 900 for ms in cuts)
    assert len(cuts) == 3


def test_no_cut_lies_before_the_first_entry(redis_url: str, raw: redis.Redis) -> None:
    # The range begins where the last one ended, long ago; what was there has been trimmed.
    with raw.pipeline(transaction=False) as pipe:
        for ms in range(1_000):
            pipe.xadd("orders", {"data": b"x"}, id=f"{10_000_000 + ms}-0")
        pipe.execute()
    with StreamClient.from_url(redis_url) as client:
        cuts = cuts_by_density(client, IdRange("orders", "5-0", "10000999-0", 60_000), 5)
        assert len(cuts) == 4
        assert all(ids.parse(cut)[0] >= 10_000_000 for cut in cuts)
        assert cuts_by_density(client, IdRange("gone", "5-0", "10000999-0", 60_000), 5) == ()


def test_a_single_millisecond_is_not_cut() -> None:
    assert probe_times("5-1", "5-9", 32) == []
    assert cut_points("5-1", "5-9", [], 4) == ()


def test_short_ranges_are_one_piece() -> None:
    assert wanted_pieces(100, 100, 1, 250_000) == 1
    assert wanted_pieces(1_000_000, 1_000_000, 1, 250_000) == 4
    assert wanted_pieces(10, 1_000, 8, 250_000) == 1
    assert wanted_pieces(990, 1_000, 8, 250_000) == 8


def test_a_read_is_shared_out_over_the_cores_where_that_pays() -> None:
    assert [enough_partitions(rows, 4) for rows in (0, 50_000, 50_001, 1_000_000)] == [1, 1, 4, 4]
    assert enough_partitions(60_000, 64) == 6
    assert enough_partitions(60_000, 1) == 1
