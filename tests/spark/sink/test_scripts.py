"""The scripts of the sink, on every server: rows are added once, in order, by the newest run, and never with a gap."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock.keys import StreamKeys
from penstock.redis.scripts import script

pytestmark = pytest.mark.every_server

KEYS = StreamKeys.of("s")
MARKS = KEYS.spark("q")


@pytest.fixture
def add(raw: redis.Redis) -> Any:
    def call(
        first: int,
        rows: list[str],
        *,
        before: str | None = None,
        after: str | None = None,
        batch: int = 0,
        partition: int = 0,
        epoch: int = 0,
        max_len: int = 0,
        policy: str = "reject",
    ) -> str:
        # A stand-in for the checksum: it grows with the rows.
        sums = (str(first) if before is None else before, str(first + len(rows)) if after is None else after)
        head = [partition, epoch, batch, first, *sums, 100, max_len, policy, len(rows), "plain"]
        reply = raw.eval(script("spark/write").source, 2, KEYS.stream, MARKS, *head, *rows)
        return str(reply.decode())

    return call


def rows(raw: redis.Redis) -> list[str]:
    return [fields[b"data"].decode() for _, fields in raw.xrange("s")]


def test_rows_are_added_once(raw: redis.Redis, add: Any) -> None:
    assert add(0, ["a", "b"]) == "added 0"
    assert add(0, ["a", "b"]) == "had"
    assert add(2, ["c"]) == "added 0"
    assert add(0, ["a", "b"]) == "had"
    assert rows(raw) == ["a", "b", "c"]
    assert 0 < raw.ttl(MARKS) <= 100


def test_a_chunk_cut_elsewhere_is_told_how_far_the_partition_has_come(raw: redis.Redis, add: Any) -> None:
    add(0, ["a", "b", "c"])
    assert add(0, ["a", "b", "c", "d"]) == "at 3 3"
    assert add(3, ["d"]) == "added 0"
    assert rows(raw) == ["a", "b", "c", "d"]


def test_a_gap_is_refused(raw: redis.Redis, add: Any) -> None:
    assert add(2, ["c"]) == "gap -1 0"
    add(0, ["a"])
    assert add(2, ["c"]) == "gap 0 1"
    assert add(1, ["b"], batch=1) == "gap 0 0", "a new batch begins with its first row"
    assert rows(raw) == ["a"]


def test_other_rows_than_before_are_refused(raw: redis.Redis, add: Any) -> None:
    add(0, ["a", "b"])
    assert add(0, ["b", "a"], after="77") == "differs"
    assert add(2, ["c"], before="77") == "differs"
    assert rows(raw) == ["a", "b"]


def test_the_next_batch_begins_anew_and_an_older_one_is_over(raw: redis.Redis, add: Any) -> None:
    add(0, ["a", "b"])
    assert add(0, ["c"], batch=1) == "added 0"
    assert add(0, ["a", "b"], batch=0) == "had"
    assert add(2, ["x"], batch=0) == "had"
    assert rows(raw) == ["a", "b", "c"]


def test_partitions_are_independent(raw: redis.Redis, add: Any) -> None:
    assert add(0, ["a"], partition=0) == add(0, ["b"], partition=1) == "added 0"
    assert add(0, ["a"], partition=0) == add(0, ["b"], partition=1) == "had"


def test_fields_of_any_number(raw: redis.Redis) -> None:
    head = [0, 0, 0, 0, "0", "1", 100, 0, "reject", 2, "full"]
    entries = [2, "data", "a", 4, "data", "b", "key", "k"]
    assert raw.eval(script("spark/write").source, 2, "s", MARKS, *head, *entries) == b"added 0"
    assert [fields for _, fields in raw.xrange("s")] == [{b"data": b"a"}, {b"data": b"b", b"key": b"k"}]


# --- full streams ---------------------------------------------------------------------------------


def test_what_finds_no_room_is_not_added_and_the_room_is_told(raw: redis.Redis, add: Any) -> None:
    assert add(0, ["a", "b", "c"], max_len=2) == "room 2"
    assert add(0, ["a", "b"], max_len=2) == "added 0"
    assert add(2, ["c"], max_len=2) == "room 0"
    assert rows(raw) == ["a", "b"]


def test_what_every_group_has_finished_makes_room(raw: redis.Redis, add: Any) -> None:
    add(0, ["a", "b"], max_len=2)
    raw.xgroup_create("s", "g", "0")
    raw.xreadgroup("g", "c", {"s": ">"}, count=1)
    raw.xack("s", "g", raw.xrange("s")[0][0])
    assert add(2, ["c"], max_len=2) == "added 0"
    assert rows(raw) == ["b", "c"]


def test_the_oldest_are_dropped_if_so_chosen(raw: redis.Redis, add: Any) -> None:
    assert add(0, ["a", "b", "c"], max_len=2, policy="drop_oldest") == "added 1"
    assert rows(raw) == ["b", "c"]


# --- runs -----------------------------------------------------------------------------------------


def register(raw: redis.Redis, run: str) -> tuple[str, int]:
    kind, epoch = raw.eval(script("spark/run").source, 1, MARKS, run, 100).decode().split(" ")
    return kind, int(epoch)


def test_a_run_keeps_its_epoch_and_a_newer_one_fences_it(raw: redis.Redis) -> None:
    kind, first = register(raw, "one")
    assert (kind, first) == ("run", first)
    assert register(raw, "one") == ("run", first)
    kind, second = register(raw, "two")
    assert (kind, second > first) == ("run", True)
    assert register(raw, "one") == ("fenced", second)
    assert register(raw, "two") == ("run", second)
    assert 0 < raw.ttl(MARKS) <= 100


def test_epochs_rise_though_the_clock_goes_back(raw: redis.Redis) -> None:
    raw.hset(MARKS, "epoch", 9_000_000_000_000_000)
    assert register(raw, "one") == ("run", 9_000_000_000_000_001)


def test_an_older_run_cannot_write(raw: redis.Redis, add: Any) -> None:
    _, old = register(raw, "one")
    assert add(0, ["a"], epoch=old) == "added 0"
    _, new = register(raw, "two")
    assert add(1, ["b"], epoch=old) == f"fenced {new}"
    assert add(1, ["b"], epoch=new) == "added 0"
    assert rows(raw) == ["a", "b"]


def test_a_stream_learns_of_a_newer_run_from_its_rows(raw: redis.Redis, add: Any) -> None:
    assert add(0, ["a"], epoch=5) == "added 0"
    assert add(1, ["b"], epoch=7) == "added 0"
    assert add(2, ["c"], epoch=5) == "fenced 7"
