"""Ranges of ids become Arrow batches: what a task of any query does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.spark.reading.holdings import holdings_of
from penstock.spark.reading.offsets import IdRange
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.rows import Page, RowBuilder


def read_ranges(options: SourceOptions, rows: RowBuilder, ranges: Sequence[IdRange]) -> Iterator[pa.RecordBatch]:
    """Return the rows of some ranges, one range after the other."""
    pages: list[Page] = []
    count = 0
    for page in holdings_of(options).scanner().pages(ranges):
        pages.append(page)
        count += len(page[1])
        if count >= options.batch_rows:
            yield rows.build(pages)
            pages, count = [], 0
    if pages:
        yield rows.build(pages)
