from __future__ import annotations

import json

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.source.offsets import BatchRange, IdRange, Offsets, Position, between, lag


def test_offsets_survive_the_checkpoint() -> None:
    offsets = Offsets(
        {
            "b": BatchRange(Position("5-1", 7), Position("1-0", 2), ("2-0", "3-4"), 9),
            "a": BatchRange(Position("0-0"), Position("0-0")),
        }
    )
    assert Offsets.load(json.loads(json.dumps(offsets.dump()))) == offsets


def test_the_same_offsets_are_the_same_text() -> None:
    one = Offsets(
        {"a": BatchRange(Position("1-0"), Position("0-0")), "b": BatchRange(Position("2-0"), Position("0-0"))}
    )
    other = Offsets(dict(reversed(one.streams.items())))
    assert json.dumps(one.dump()) == json.dumps(other.dump())


@pytest.mark.parametrize(
    "offset",
    [{}, {"v": 2, "s": {}}, {"v": 1}, {"v": 1, "s": {"a": {}}}, {"v": 1, "s": {"a": {"id": "x", "from": "1-0"}}}],
)
def test_what_this_source_did_not_write_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="checkpoint"):
        Offsets.load(offset)


def test_a_batch_is_cut_where_its_end_says() -> None:
    progress = BatchRange(Position("9-0", 30), Position("1-0", 0), ("4-0", "7-0"))
    assert progress.pieces("s") == [
        IdRange("s", "1-0", "4-0", 10, 0), IdRange("s", "4-0", "7-0", 10, None), IdRange("s", "7-0", "9-0", 10, None),
    ]  # fmt: skip


def test_a_stream_without_news_has_no_pieces() -> None:
    assert BatchRange(Position("4-0"), Position("4-0")).pieces("s") == []


def test_cuts_are_ordered_as_redis_orders_ids() -> None:
    assert between(["10-0", "9-0", "9-10", "9-9", "1-0", "99-0"], "1-0", "99-0") == ("9-0", "9-9", "9-10", "10-0")


def test_the_lag_is_counted_in_entries() -> None:
    latest = Offsets(
        {
            "a": BatchRange(Position("9-0", 90), Position("9-0", 90)),
            "b": BatchRange(Position("5-0", 5), Position("5-0", 5)),
            "c": BatchRange(Position("5-0"), Position("5-0")),
        }
    ).dump()
    end = Offsets(
        {"a": BatchRange(Position("4-0", 40), Position("1-0", 10)), "c": BatchRange(Position("4-0"), Position("1-0"))}
    ).dump()
    assert lag(latest, end) == {"a": 50, "b": 5, "c": None}
    assert lag(end, end) == {"a": 0, "c": 0}
    assert lag(None, end) == {}
