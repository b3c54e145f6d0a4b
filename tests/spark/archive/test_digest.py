"""The checksum of rows sees every value and their order, and nothing of how they are laid out."""

from __future__ import annotations

import pyarrow as pa

from penstock.spark.archive.file_writer import RowDigest
from penstock.spark.archive.state import SCHEMA, stored
from tests.spark.archive.streams import Stream


def _rows(count: int = 40) -> pa.Table:
    stream = Stream()
    stream.add(count)
    return pa.Table.from_batches([stored(batch) for batch in stream.rows(0, count)])


def _sum(batches: list[pa.RecordBatch]) -> str:
    digest = RowDigest(SCHEMA)
    for batch in batches:
        digest.add(batch)
    return digest.sum()


def test_however_rows_are_cut_the_sum_is_the_same() -> None:
    table = _rows()
    whole = table.combine_chunks().to_batches()
    assert _sum(whole) == _sum(table.to_batches()) == _sum(table.combine_chunks().to_batches(3))
    assert _sum(whole) != _sum(table.slice(1).to_batches())


def test_every_changed_value_changes_the_sum() -> None:
    rows = _rows(10).to_pylist()
    sums = {_sum([pa.RecordBatch.from_pylist(rows, SCHEMA)])}
    changes = [
        {"data": b"other"}, {"data": None}, {"key": "k"}, {"key": ""}, {"headers": [("a", "b")]}, {"fields": []},
        {"fields": [("n", b"y")]}, {"id": "1-1"}, {"seq": 77}, {"stream": "other"}, {"message_id": "m"},
    ]  # fmt: skip
    for change in changes:
        changed = [rows[0] | change, *rows[1:]]
        sums.add(_sum([pa.RecordBatch.from_pylist(changed, SCHEMA)]))
    sums.add(_sum([pa.RecordBatch.from_pylist(rows[::-1], SCHEMA)]))
    assert len(sums) == len(changes) + 2
