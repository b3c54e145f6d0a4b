"""A queue that rests for an hour between two tries: it goes on after a failover only if that ends its rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.events import Event, EventName
from tests.redis.halves import Half

_HOUR_S = 3_600.0


def goes_on(half: Half, url: str, name: str, fail_over: Callable[[], Any]) -> None:
    """Has one caller wait for a message and another publish it while the server is away."""
    resting = threading.Event()

    def listen(event: Event) -> None:
        if event.name is EventName.TRYING_AGAIN:
            resting.set()

    def make() -> Any:
        return half.api.RedisMessageQueue(
            name,
            gateway=half.api.RedisGateway(
                redis_client=half.client(url),
                retry_initial_delay_seconds=_HOUR_S,
                retry_max_delay_seconds=_HOUR_S,
                retry_budget_seconds=2 * _HOUR_S,
                message_wait_interval_seconds=2 * _HOUR_S,
                on_event=listen,
            ),
        )

    publishing, taking = half.do(make), half.do(make)
    enter, leave = ("__aenter__", "__aexit__") if half.name == "async" else ("__enter__", "__exit__")
    half.do(publishing.publish, "before")
    first, second = taking.process_message(), taking.process_message()
    assert half.do(getattr(first, enter)) == "before"
    waiting = half.start(getattr(second, enter))
    client = half.client(url)
    half.do(client.call, name, "SET", f"{name}_mark", 1)
    assert half.do(client.call, name, "WAIT", 1, 30_000) == 1, "the replica has it all"
    fail_over()
    assert resting.wait(30)
    assert half.do(publishing.publish, "after") is True
    assert waiting.result(30) == "after"
    for processing in (first, second):
        half.do(getattr(processing, leave), None, None, None)
    assert half.do(taking.stats).processing == 0
    half.do(publishing.close)
    half.do(taking.close)
