"""A handler that hangs fails like one that raises, in whatever it hangs; without Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from penstock import StreamMessage
from penstock.errors import ConfigurationError, HandlerTimeout
from penstock.policy import Reason
from penstock.spark.pipeline import Handler
from penstock.spark.pipeline.caller import Caller, Outcome
from tests.spark.pipeline.test_handling import messages

TIMEOUT_S = 1.0  # so long that a handler that does not hang is never late


def handled(function: Any, count: int = 3, timeout_s: float = TIMEOUT_S) -> Outcome:
    caller = Caller(function, 2, has_output=False, timeout_s=timeout_s)
    outcome = caller.handle(messages(count))
    caller.close()
    return outcome


def in_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def in_a_lock() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


def in_a_loop_that_swallows_errors() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:
            continue


@pytest.mark.parametrize("hang", [in_a_socket, in_a_lock, in_a_loop_that_swallows_errors])
def test_a_plain_handler_is_interrupted_and_only_its_message_given_up(hang: Any) -> None:
    def handle(given: list[StreamMessage]) -> list[str]:
        if any(message.data == 1 for message in given):
            hang()
        return [message.id for message in given]

    before = signal.getsignal(signal.SIGALRM)
    outcome = handled(handle)
    assert set(outcome.done) == {"0-0", "2-0"}
    failure = outcome.failed["1-0"]
    assert (failure.reason, failure.attempts, type(failure.error)) == (Reason.MAX_DELIVERIES, 2, HandlerTimeout)
    assert str(failure.error) == "handler exceeded its timeout of 1 s"
    assert signal.getsignal(signal.SIGALRM) is before


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


async def will_not_be_cancelled() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def block_the_loop() -> None:
    in_a_socket()


@pytest.mark.parametrize("hang", [sleep_for_ever, will_not_be_cancelled, block_the_loop])
def test_an_async_handler_is_cancelled_or_else_interrupted(hang: Any) -> None:
    async def handle(given: list[StreamMessage]) -> list[str]:
        if any(message.data == 1 for message in given):
            await hang()
        return [message.id for message in given]

    outcome = handled(handle)
    assert set(outcome.done) == {"0-0", "2-0"}
    assert isinstance(outcome.failed["1-0"].error, HandlerTimeout)


def test_a_timeout_of_the_handlers_own_is_its_own_and_one_that_is_in_time_is_left_alone() -> None:
    async def handle(given: list[StreamMessage]) -> list[str]:
        raise TimeoutError("of a server")

    assert str(handled(handle, 1, timeout_s=60).failed["0-0"].error) == "of a server"
    assert set(handled(lambda given: [message.id for message in given], timeout_s=60).done) == {"0-0", "1-0", "2-0"}


_IN_A_PROCESS = """
from contextlib import nullcontext
from penstock.spark.pipeline.caller import Caller
from tests.spark.pipeline.shop import hang_in_c
from tests.spark.pipeline.test_handling import messages
def handle(given):
    hang_in_c(holds_the_lock={holds!r})
def give_up(entry_id, failure):
    print(entry_id, type(failure.error).__name__, flush=True)
Caller(handle, 3, has_output=False, timeout_s=0.2).handle(messages(2), give_up, {alone})
"""


@pytest.mark.parametrize(
    ("holds", "alone", "told"),
    [(False, "nullcontext", "0-0 HandlerTimeout\n"), (False, None, ""), (True, "nullcontext", "")],
)
def test_a_worker_that_cannot_be_interrupted_ends_and_tells_of_the_message(
    holds: bool, alone: str | None, told: str
) -> None:
    """When several messages are in hand, nobody is told: the repeated task has them one by one."""
    script = _IN_A_PROCESS.format(holds=holds, alone=alone)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert ended.returncode != 0
    assert ended.stdout == told
    assert "hang_in_c" in ended.stderr  # where it hung


@pytest.mark.parametrize("timeout", ["0s", "soon", "-5s", "2d", "1e999s", ""])
def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    with pytest.raises(ConfigurationError, match="timeout="):
        Handler("a:b", timeout=timeout)
