"""When a balancer sweeps again: hints make it hurry, however long the application took for what was found before."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.balancer import orphans
from penstock.balancer.config import MetricsRecorder
from penstock.balancer.notice_queue import NoticeQueue
from penstock.balancer.orphans import Sweep
from penstock.keys import BalancerKeys
from penstock.model import PendingEntry

COUNT = 20


class Commands:
    """A service whose streams have no owner."""

    keys, me = BalancerKeys.of("svc"), "me"
    config = SimpleNamespace(
        lbs_recovery_count=COUNT + 1,
        lease_ms=2_000,
        recovery_interval_ms=5_000,
        logger=logging.getLogger(),
        metrics_recorder=MetricsRecorder(),
    )

    async def pending(self, start: str, count: int) -> list[PendingEntry]:
        return [PendingEntry(f"{n}-1", "dead", 3_000, 1) for n in range(COUNT)]

    async def bodies(self, ids: list[str]) -> list[list[bytes]]:
        return [[] for _ in ids]

    async def message_of(self, entry_id: str, fields: list[bytes], deliveries: int) -> Any:
        return SimpleNamespace(data_stream_name=f"session-{entry_id}", info=None)

    async def are_locked(self, payloads: list[Any]) -> list[bool]:
        return [False for _ in payloads]


async def test_waiting_for_the_application_does_not_delay_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(orphans, "time", SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: 0.0))
    notices = NoticeQueue(1)
    holdings = SimpleNamespace(has_entry=lambda _: False)
    sweep = Sweep(cast("Any", Commands()), cast("Any", holdings), notices)
    rests: list[float] = []

    async def after_each() -> None:
        sweep.request_after_event()  # a lock expires
        rests.append(sweep._not_before_s - clock[0])
        sweep.stop()

    running = asyncio.ensure_future(sweep.run(after_each))
    for _ in range(COUNT):
        await anext(notices)
        clock[0] += 1.0  # the application claims a stream
    await running

    assert rests == [pytest.approx(orphans._AFTER_HINT_S)]
