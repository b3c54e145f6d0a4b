"""Whether rows fit an Iceberg table, as either library describes both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.spark.pipeline.sinks import Iceberg


@dataclass(frozen=True)
class Described:
    """A table: the types of its columns in Iceberg's words, and the columns that it is partitioned by."""

    columns: Mapping[str, str]
    partitions: Sequence[str]


def misfits(sink: Iceberg, wanted: Mapping[str, str], found: Described) -> Iterator[str]:
    """Yield what keeps rows with the wanted columns out of a table."""
    for name, kind in wanted.items():
        if name not in found.columns:
            yield f"table {sink.table!r} has no column {name!r}; it has {', '.join(found.columns)}"
        elif _plain(found.columns[name]) != _plain(kind):
            yield f"table {sink.table!r}: column {name!r} is {kind} here and {found.columns[name]} there"
    if list(found.partitions) != list(sink.partition_by):
        yield f"table {sink.table!r} is partitioned by {list(found.partitions)}, not by partition_by"


def _plain(kind: str) -> str:
    """Leave out the ids of nested fields and whether they are required: neither keeps a file out."""
    return re.sub(r"\d+: |(?:required|optional) ", "", kind)
