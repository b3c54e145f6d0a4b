"""The application that dramatiq's command loads."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.tasks.peers.setting import URL

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)  # type: ignore[untyped-decorator]
def noop(message: dict[str, Any]) -> int:
    return 1
