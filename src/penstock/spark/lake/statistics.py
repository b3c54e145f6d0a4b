"""Statistics of a data file for the log of a Delta table, from the footer of the file: readers skip files by them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MOST_COLUMNS = 32  # as delta.dataSkippingNumIndexedCols has it
_LONGEST_TEXT = 32
_LAST_CHARACTER = "\U0010ffff"
_MS = timedelta(milliseconds=1)


def statistics(footer: pq.FileMetaData, without: Collection[str] = ()) -> str:
    """Return rows, least and greatest values, and nulls of the plain columns, in JSON; `without` some columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if "." in column.path or column.name in without or len(nulls) >= _MOST_COLUMNS:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[column.name] = sum(each.null_count for each in found)
        bounded = [each for each in found if each.num_values]  # others are all null
        if bounded and all(each.has_min_max for each in bounded):
            zone = "Z" if json.loads(column.logical_type.to_json()).get("isAdjustedToUTC") else ""
            low, high = min(each.min for each in bounded), max(each.max for each in bounded)
            bounds = _at_least(low, zone), _at_most(high, zone)
            if None not in bounds:
                least[column.name], greatest[column.name] = bounds
    found_all = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(found_all, separators=(",", ":"), ensure_ascii=False)


def _at_least(value: object, zone: str) -> object:
    """Return a value as the log has it, rounded down where it cannot be exact; None if it has no place there."""
    if isinstance(value, datetime):
        return _time(value - timedelta(microseconds=value.microsecond % 1000), zone)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return _plain(value)


def _at_most(value: object, zone: str) -> object:
    """Return a value as the log has it, rounded up where it cannot be exact; None if it has no place there."""
    if isinstance(value, datetime):
        rest = value.microsecond % 1000
        return _time(value - timedelta(microseconds=rest) + _MS if rest else value, zone)
    if isinstance(value, str):
        if len(value) <= _LONGEST_TEXT:
            return value
        return None if value[_LONGEST_TEXT] == _LAST_CHARACTER else value[:_LONGEST_TEXT] + _LAST_CHARACTER
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else None  # a float would not be exact
    return None


def _time(value: datetime, zone: str) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
