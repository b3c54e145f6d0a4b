"""How long Spark bears a server that does not answer, and how often a run starts again."""

from __future__ import annotations

import pytest

from penstock.errors import ConnectionLost, GroupLost, PermissionDenied, ServerBusy, TransientError
from penstock.redis.translate import Redirected
from penstock.spark.runtime import restarts
from penstock.spark.runtime.link import retry
from penstock.spark.runtime.restarts import run_with_restarts


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


def test_who_is_asked_to_stop_does_not_wait_any_longer() -> None:
    errors: list[Exception] = [ConnectionLost("broke"), ConnectionLost("broke again")]
    with pytest.raises(ConnectionLost, match=r"^broke again$"):
        retry(lambda: _failing(errors), 30, is_stopping=lambda: not errors)


def test_a_run_starts_again_however_often_it_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_LONGEST_PAUSE_S", 0.0)
    errors: list[Exception] = [ConnectionLost("broke") for _ in range(1_100)]

    def attempt() -> None:
        assert _failing(errors) == "done"

    assert run_with_restarts(attempt, batches=lambda: 0, most=lambda _: 2_000, is_stopping=lambda: False)
