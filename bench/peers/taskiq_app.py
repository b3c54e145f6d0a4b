"""The application that taskiq's command loads."""

from __future__ import annotations

from taskiq_redis import RedisStreamBroker

from bench.peers.handlers import async_handler
from bench.peers.params import GROUP, STREAM, from_environment

_params = from_environment()
_handle = async_handler(_params) if _params.role == "work" else None
broker = RedisStreamBroker(_params.url, queue_name=STREAM, consumer_group_name=GROUP, consumer_id="0")


@broker.task(task_name="handle")  # type: ignore[untyped-decorator]
async def handle(message: dict) -> None:  # type: ignore[type-arg] # read at run time by taskiq
    """Counts the message."""
    assert _handle is not None
    await _handle(message)
