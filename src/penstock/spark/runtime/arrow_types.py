"""The columns of Spark as Arrow says them, with times in UTC."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

# Spark 4.1 has no such parameter, and always says UTC.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> Any:
    """Return the schema as the executors must give it to Spark."""
    return to_arrow_schema(schema, **_UTC)
