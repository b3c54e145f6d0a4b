"""Whatever command gets lost on its way there or back, the outcome is the same as if nothing had been lost."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from penstock import StreamClient
from penstock.queue.consumer_slots import ConsumerSlots
from penstock.queue.queue_consumer import QueueConsumer
from penstock.redis.dead_letter_retention import DeadLetterRetention
from penstock.redis.scripts import script
from penstock.testing import FaultProxy
from tests.queue.audit import SCRIPTS, Recorder, Request, Stage, commands_in_the_source
from tests.queue.audit_stories import STORIES

_ONE_SERVER = pytest.mark.usefixtures("default_server")
pytestmark = _ONE_SERVER  # sync: pytestmark = [_ONE_SERVER, pytest.mark.slow]
OTHER_PARTS = ("balancer/", "ops/", "queue/import_", "spark/", "tasks/")  # each has its own tests of lost replies
NOT_OF_QUEUES = {"streams/ack", "streams/leave_name", "streams/take_name"} | {
    name for name in SCRIPTS if name.startswith(OTHER_PARTS)
}
# With no budget the caller publishes again what he does not know to be there: without a key that adds it twice.
NEED_A_BUDGET = {"publish_plain"}


@pytest.fixture
async def audited(fault_proxy: FaultProxy, raw: redis.Redis) -> AsyncIterator[StreamClient]:
    for name in SCRIPTS:
        raw.script_load(script(name).source)
    async with StreamClient.from_url(fault_proxy.url) as client:
        yield client


async def told(name: str, client: StreamClient, raw: redis.Redis, budget_s: float) -> dict[str, Any]:
    """Tells a story from an empty server on and returns its outcome."""
    raw.flushall()
    stage = Stage(client, raw, budget_s)
    with pytest.MonkeyPatch.context() as patched:
        # Else a telling soon after another one would not look after the limits of its dead letters.
        patched.setattr(sys.modules[DeadLetterRetention.__module__], "_REAPPLY_S", 0.0)
        if name != "take_ahead_and_pause":
            # On a busy machine a message that was taken ahead would be put back, by commands that no other telling has.
            for user in (QueueConsumer, ConsumerSlots):
                patched.setattr(sys.modules[user.__module__], "PATIENCE_S", 60.0)
        await STORIES[name](stage)
        await stage.close()
    return stage.outcome()


async def recorded(
    name: str, client: StreamClient, raw: redis.Redis, proxy: FaultProxy
) -> tuple[dict[str, Any], list[Request]]:
    with Recorder(proxy) as recorder:
        expected = await told(name, client, raw, 60.0)
    return expected, recorder.requests()


@pytest.mark.parametrize(
    ("loses", "budget_s"),
    [
        pytest.param("reply", 60.0, id="reply-budget"),
        pytest.param("request", 0.0, id="request-no-budget"),
        # Each of their halves is one of those above.
        pytest.param("reply", 0.0, id="reply-no-budget", marks=pytest.mark.slow),
        pytest.param("request", 60.0, id="request-budget", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", STORIES)
async def test_every_command_may_get_lost(
    name: str, loses: str, budget_s: float, audited: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy
) -> None:
    if not budget_s and name in NEED_A_BUDGET:
        pytest.skip("the caller cannot know")
    expected, requests = await recorded(name, audited, raw, fault_proxy)
    comparable = of_value(budget_s)
    for request in requests:
        fault = request.arm(fault_proxy, loses)
        outcome = await told(name, audited, raw, budget_s)
        assert comparable(outcome) == comparable(expected), f"{request}: lost {loses}"
        assert fault.has_happened or request.nth > 1, f"{request} was not sent again"
        fault_proxy.heal()


def of_value(budget_s: float) -> Callable[[dict[str, Any]], Any]:
    """Returns what of an outcome must be the same: with no budget calls fail and are made again, the state is as it was."""
    if budget_s:
        return lambda outcome: outcome
    return lambda outcome: {kind: found for kind, found in outcome.items() if kind not in {"results", "events"}}


async def test_no_command_is_forgotten(audited: StreamClient, raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    seen: set[str] = set()
    for name in STORIES:
        _, requests = await recorded(name, audited, raw, fault_proxy)
        seen |= {request.script or request.command for request in requests}
    seen |= {"streams/take"}  # only after a loss
    assert seen >= SCRIPTS - NOT_OF_QUEUES, "a script that no story runs"
    assert commands_in_the_source() - {"XREADGROUP"} <= seen | {"XADD"}, "a command that no story sends"
    assert "XREADGROUP" in seen
