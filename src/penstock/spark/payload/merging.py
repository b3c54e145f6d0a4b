"""One type that holds the values of two: for samples that differ, and for unions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa

from penstock.spark.payload.schema import list_of, map_of

BIG_WHOLE = pa.decimal128(38, 0)  # whole numbers beyond 64 bits, as Spark infers them
_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), BIG_WHOLE]
_NUMBERS = [*_WHOLE, pa.float32(), pa.float64()]


def merged(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that holds the values of all; of none it is void."""
    return reduce(merge, kinds, pa.null())


def merge(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds the values of both, which is string when no other does."""
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if left in _WHOLE and right in _WHOLE:
        return _WHOLE[max(_WHOLE.index(left), _WHOLE.index(right))]
    if left in _NUMBERS and right in _NUMBERS:
        return pa.float64()
    for same in (pa.types.is_list, pa.types.is_map, pa.types.is_struct):
        if same(left) and same(right):
            return _merge_nested(left, right)
    return pa.string()


def usable(kind: pa.DataType) -> pa.DataType:
    """Return the type with string in place of void and of structs without fields, which most sinks of Spark refuse."""
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and kind.num_fields == 0):
        return pa.string()
    if pa.types.is_list(kind):
        return list_of(usable(kind.value_type), nullable=kind.value_field.nullable)
    if pa.types.is_map(kind):
        return map_of(kind.key_type, usable(kind.item_type), nullable=kind.item_field.nullable)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(usable(field.type)) for field in kind])
    return kind


def _merge_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_list(left):
        nullable = left.value_field.nullable or right.value_field.nullable
        return list_of(merge(left.value_type, right.value_type), nullable=nullable)
    if pa.types.is_map(left):
        nullable = left.item_field.nullable or right.item_field.nullable
        return map_of(merge(left.key_type, right.key_type), merge(left.item_type, right.item_type), nullable=nullable)
    return pa.struct(_merge_fields(left, right))


def _merge_fields(left: pa.DataType, right: pa.DataType) -> list[pa.Field]:
    ours = {field.name: field for field in left}
    theirs = {field.name: field for field in right}
    fields = []
    for name in {**ours, **theirs}:
        both = [side[name] for side in (ours, theirs) if name in side]
        # What one side lacks may be missing, and so null.
        nullable = len(both) == 1 or any(field.nullable for field in both)
        fields.append(pa.field(name, merged(field.type for field in both), nullable))
    return fields
