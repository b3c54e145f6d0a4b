"""What becomes of a batch of messages when it is replayed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.spark.archive.state import SCHEMA
from penstock.spark.replay.run import Counts, Rewriter, message_id
from penstock.spark.sink.entries import MAX_FIELDS


def rewritten(*rows: dict[str, Any]) -> tuple[list[dict[str, Any]], Counts]:
    counts = Counts()
    blank = {"stream": "orders", "id": "1-0", "ms": 1, "seq": 0, "timestamp": 0, "data": b"x"}
    batch = pa.RecordBatch.from_pylist([blank | row for row in rows], SCHEMA)
    return Rewriter("again", "orders").rewrite(batch, counts).to_pylist(), counts


def test_what_is_left_out_takes_nothing_of_its_neighbours_along() -> None:
    loop = [("replay_of", "orders/0-1")]
    found, counts = rewritten(
        {"id": "1-0", "data": b"one", "key": "k"},
        {"id": "2-0", "data": b"two", "headers": loop},
        {"id": "3-0", "data": None, "fields": []},
        {"id": "4-0", "data": b"four", "key": "", "fields": [("tenant", b"t"), ("redrives", b"2")]},
        {"id": "5-0", "data": None, "fields": [("tenant", b"u")]},
    )
    assert counts == Counts(wanted=3, looping=1, empty=1)
    assert [(row["data"], row["key"], row["fields"]) for row in found] == [
        (b"one", "k", []),
        (b"four", None, [("tenant", b"t")]),
        (None, None, [("tenant", b"u")]),
    ]
    places = ["orders/1-0", "orders/4-0", "orders/5-0"]
    assert [row["headers"] for row in found] == [[("replay_of", each), ("replay", "again")] for each in places]
    assert [row["message_id"] for row in found] == [message_id("again", each, each) for each in places]


def test_a_batch_of_nothing_is_none() -> None:
    assert rewritten() == ([], Counts())
    assert rewritten({"data": None}) == ([], Counts(empty=1))


def test_keys_that_no_producer_writes_are_fields_as_they_were() -> None:
    long, odd = b"k" * 600, b"\xff\xfe"
    found, counts = rewritten(
        {"id": "1-0", "key": "k" * 600, "fields": [("key", long), ("tenant", b"t")]},
        {"id": "2-0", "key": odd.decode(errors="replace"), "fields": [("key", odd)]},
        {"id": "3-0", "key": "k", "fields": [("key", b"k")]},
        {"id": "4-0", "key": "k" * 600, "fields": []},  # of a file: the sink refuses it, and tells the line
    )
    assert counts == Counts(wanted=4)
    assert [(row["key"], row["fields"]) for row in found] == [
        (None, [("key", long), ("tenant", b"t")]),
        (None, [("key", odd)]),
        ("k", []),
        ("k" * 600, []),
    ]


def test_more_fields_than_an_entry_may_have_are_cut_and_the_message_says_so() -> None:
    others = [(f"f{n}", b"v") for n in range(3_000)]
    found, counts = rewritten({"fields": [*others, ("content_type", b"text/plain")]}, {"fields": others[:100]})
    assert counts == Counts(wanted=2, cut=1)
    fields = dict(found[0]["fields"])
    assert (len(fields) <= MAX_FIELDS, fields["content_type"], fields["f0"]) == (True, b"text/plain", b"v")
    assert fields["dlq_cut"] == b"%d fields, %d bytes" % (left := 3_002 - len(fields), 6 * left)
    assert found[1]["fields"] == others[:100]
