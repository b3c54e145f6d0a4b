"""The columns of a table as Arrow says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def nullable_arrow(schema: StructType) -> Any:
    """Return the schema with columns that may all be null: whoever appends may bring null in what has none today."""
    from pyspark.sql.types import StructField, StructType

    from penstock.spark.arrow_types import arrow_schema

    return arrow_schema(StructType([StructField(f.name, f.dataType) for f in schema.fields]))
