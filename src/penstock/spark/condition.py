"""What is wrong with a condition that a user wrote, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ConfigurationError


@contextmanager
def told(condition: str) -> Iterator[None]:
    """Raise ConfigurationError for what Spark finds wrong with `--where`, or with what it makes of a message."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")  # it prints what Java said, pages of it
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except PySparkException as error:
        text = " ".join(str(error).partition("SQLSTATE")[0].split())  # behind it come the plan and Java's words
        raise ConfigurationError(f"--where {condition!r}: {text}") from None
    finally:
        logger.disabled = was_disabled
