"""The application that dramatiq's command loads."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.handlers import plain_handler
from bench.peers.params import from_environment
from bench.peers.payload import Message

_params = from_environment()
_handle = plain_handler(_params) if _params.role == "work" else None
dramatiq.set_broker(RedisBroker(url=_params.url))


@dramatiq.actor  # type: ignore[untyped-decorator]
def handle(message: Message) -> None:
    """Counts the message."""
    assert _handle is not None
    _handle(message)
