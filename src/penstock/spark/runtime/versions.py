"""Checks for PySpark and other optional packages, and what differs between versions of PySpark."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OLDEST_PYSPARK = (4, 1)
_READ_LIMITS = (4, 2)
_ANY_JAVA = (4, 2)
_NEWEST_JAVA_BEFORE = 21


class SparkMissing(PenstockError):
    """PySpark is not installed, or is too old; the message says what to install."""


def require_pyspark() -> None:
    """Makes sure that PySpark can be used.

    Raises:
        SparkMissing: it is not installed, or older than 4.1.

    """
    try:
        from pyspark import __version__ as version
    except ImportError as error:
        raise SparkMissing(
            f"penstock.spark needs PySpark, which cannot be imported ({error}): pip install 'penstock[spark]'"
        ) from error
    oldest = ".".join(map(str, _OLDEST_PYSPARK))
    if _numbers(version) < _OLDEST_PYSPARK:
        raise SparkMissing(
            f"penstock.spark needs PySpark {oldest} or newer, and {version} is installed: "
            f"pip install 'penstock[spark]' 'pyspark>={oldest}'"
        )


def has_read_limits() -> bool:
    """Return whether Spark says where a batch begins when it asks for its end, so that a batch can be limited."""
    from pyspark import __version__ as version

    return _numbers(version) >= _READ_LIMITS


def newest_java() -> int | None:
    """Return the newest Java that Spark runs on, or None for any; the Hadoop and Arrow of Spark 4.1 fail on Java 25."""
    from pyspark import __version__ as version

    return None if _numbers(version) >= _ANY_JAVA else _NEWEST_JAVA_BEFORE


def required(module: str, missing: type[PenstockError], what: str, install: str) -> Any:
    """Return a module of an extra; raise `missing`, with what needs it and what to install, if there is none."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(f"{what} needs {module}, which cannot be imported ({error}): pip install {install}") from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def arrow_schema(schema: StructType) -> Any:
    """Return the columns of Spark as Arrow says them, and as executors must give them to Spark: with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1 has no such parameter, and always says UTC.
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if has_zone else to_arrow_schema(schema)
