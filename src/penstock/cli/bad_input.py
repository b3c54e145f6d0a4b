"""Bad input is told in one line and ends with code 2, as a misspelt option does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from penstock.cli.shown import print_error
from penstock.errors import ConfigurationError, PenstockError, StreamMissing, WrongType

_OF_PENSTOCK = re.compile(r"penstock(?:\.\w+)*\.(\w+): (.+)")


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn what the user got wrong into one line and exit code 2."""
    try:
        yield
    except (ConfigurationError, StreamMissing, WrongType) as error:
        print_error(" ".join(str(error).split()))
        raise typer.Exit(2) from None


class QueryFailed(PenstockError):
    """A Spark query ended with an error."""


def query_failed(error: BaseException) -> QueryFailed:
    """Return an error with our own words out of the long text that Spark wraps them in."""
    from penstock.spark.spark_errors import one_line

    told = [match[2] for match in _OF_PENSTOCK.finditer(str(error))]
    return QueryFailed(told[-1].strip() if told else one_line(error))
