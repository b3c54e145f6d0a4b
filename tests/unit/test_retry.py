from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.redis.retry import Repeat, pause_s

NOT_EXECUTED = [errors.ConnectionFailed, errors.ServerBusy, errors.ReadOnlyServer, errors.NotReplicating]
UNKNOWN = [errors.ConnectionLost, errors.CommandTimeout]
FINAL = [
    errors.WrongType, errors.OutOfMemory, errors.GroupLost, errors.PermissionDenied, errors.AuthenticationFailed,
    errors.ServerError, errors.UnsupportedServer, errors.ClusterSlotError, errors.ClientClosed, ValueError,
]  # fmt: skip


@pytest.mark.parametrize("error", NOT_EXECUTED)
@pytest.mark.parametrize("repeat", list(Repeat))
def test_what_was_not_executed_may_always_be_sent_again(repeat: Repeat, error: type[Exception]) -> None:
    assert repeat.allows(error("x"))


@pytest.mark.parametrize("error", UNKNOWN)
def test_what_may_have_been_executed_is_sent_again_unless_it_may_happen_once(error: type[Exception]) -> None:
    assert Repeat.READ.allows(error("x"))
    assert Repeat.IDEMPOTENT.allows(error("x"))
    assert not Repeat.ONCE.allows(error("x"))


@pytest.mark.parametrize("error", FINAL)
@pytest.mark.parametrize("repeat", list(Repeat))
def test_every_other_answer_is_final(repeat: Repeat, error: type[Exception]) -> None:
    assert not repeat.allows(error("x"))


@given(st.integers(1, 10_000), st.integers())
def test_pauses_double_up_to_the_longest(failures: int, seed: int) -> None:
    plain_s = min(0.02 * 2 ** min(failures - 1, 50), 2.0)
    assert plain_s / 2 <= pause_s(failures, random.Random(seed)) <= plain_s
