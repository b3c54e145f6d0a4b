"""What filters of a query say about times and streams; never about ids, which Spark orders as texts and Redis not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual


@dataclass(frozen=True)
class Narrowing:
    """The times [from, before) and the streams to which a query can be narrowed; None = no limit."""

    from_ms: int | None = None
    before_ms: int | None = None
    streams: frozenset[str] | None = None

    def wants(self, stream: str) -> bool:
        """Tell whether the query looks at the stream."""
        return self.streams is None or stream in self.streams

    @classmethod
    def of(cls, filters: Sequence[Filter]) -> Narrowing:
        """Return what all filters together allow."""
        narrowing = cls()
        for given in filters:
            narrowing = _narrowed(narrowing, given)
        return narrowing


def _narrowed(narrowing: Narrowing, given: Filter) -> Narrowing:
    if isinstance(given, EqualTo | In) and given.attribute == ("stream",):
        names = frozenset(given.value if isinstance(given, In) else [given.value])
        return replace(narrowing, streams=names if narrowing.streams is None else narrowing.streams & names)
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return narrowing
    ms = _milliseconds(given.attribute, given.value)
    if ms is None:
        return narrowing
    if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
        # An entry of the very millisecond may be wanted or not: it is read, and Spark decides.
        low = math.floor(ms)
        narrowing = replace(narrowing, from_ms=low if narrowing.from_ms is None else max(low, narrowing.from_ms))
    if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
        high = math.floor(ms) + 1
        narrowing = replace(
            narrowing, before_ms=high if narrowing.before_ms is None else min(high, narrowing.before_ms)
        )
    return narrowing


def _milliseconds(attribute: tuple[str, ...], value: object) -> float | None:
    if attribute == ("ms",) and isinstance(value, int):
        return value
    if attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp() * 1000
    return None
