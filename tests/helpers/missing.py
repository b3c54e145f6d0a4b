"""What a machine need not have: its tests are skipped there, with the remedy, and fail in continuous integration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.spark.runtime.java import JavaMissing
from penstock.spark.runtime.versions import SparkMissing
from penstock.testing import ServerKind, ServerMissing
from penstock.testing.servers import DEFAULT, FLOOR, NEWEST

IS_CI = os.environ.get("CI") == "true"


@contextmanager
def skip_where_missing() -> Iterator[None]:
    """Turns the error that says what is not installed into a skip, or into a failure in continuous integration."""
    try:
        yield
    except (ServerMissing, JavaMissing, SparkMissing) as error:
        if IS_CI:
            pytest.fail(str(error))
        pytest.skip(str(error))


_usual = [DEFAULT, NEWEST, FLOOR]


def rotate_usual_server(rotation: int) -> None:
    """Makes the newest server the usual one in every second rotation: machines without a package have its wheel."""
    _usual[:2] = [NEWEST, DEFAULT] if rotation % 2 else [DEFAULT, NEWEST]


def usual_server() -> ServerKind:
    """Returns the server for tests to which the version makes no difference: the first one that is installed."""
    if IS_CI:
        return _usual[0]
    return next((kind for kind in _usual if kind.is_installed), _usual[0])
