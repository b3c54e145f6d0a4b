"""How long the Spark source and sink bear a server that does not answer."""

from __future__ import annotations

import pytest

from penstock.errors import ConnectionLost, GroupLost, PermissionDenied, ServerBusy, TransientError
from penstock.redis.translate import Redirected
from penstock.spark.runtime.link import retry


def _failing(errors: list[Exception]) -> str:
    if errors:
        raise errors.pop(0)
    return "done"


def test_what_passes_is_waited_for() -> None:
    errors: list[Exception] = [ConnectionLost("broke"), ServerBusy("LOADING")]
    assert retry(lambda: _failing(errors), 30) == "done"


@pytest.mark.parametrize("error", [PermissionDenied("NOPERM"), GroupLost("no such key")])
def test_what_does_not_pass_is_told_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        retry(lambda: _failing([error]), 30)


@pytest.mark.parametrize("error", [ConnectionLost("broke"), Redirected("MOVED 12 10.0.0.1:6379")])
def test_what_does_not_pass_in_time_is_told_with_the_option_that_bounds_it(error: TransientError) -> None:
    def step() -> None:
        raise error

    with pytest.raises(TransientError, match="option retryTimeout"):
        retry(step, 0)
