"""A gateway of a few lines that keeps its messages in memory: what a user would derive from AbstractRedisGateway."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from penstock import AbstractRedisGateway, ClaimedMessage
from penstock.queue.model import MessageData


@dataclass
class Broker:
    """What several gateways share, as they would share a server."""

    queues: dict[str, deque[str]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    leases: dict[str, tuple[str, str, float]] = field(default_factory=dict)  # token -> pending, message, until
    tokens: int = 0

    def queue(self, name: str) -> deque[str]:
        return self.queues.setdefault(name, deque())


class MemoryGateway(AbstractRedisGateway):
    """Leases, tokens, deduplication without a window, dead letters."""

    def __init__(self, broker: Broker, lease_s: float | None = 30.0, dead_letter_queue: str | None = None) -> None:
        self._broker = broker
        self.message_visibility_timeout_seconds = lease_s
        self.max_delivery_count = None
        self.dead_letter_queue = dead_letter_queue

    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        if f"{queue} {dedup_key}" in self._broker.keys:
            return False
        self._broker.keys.add(f"{queue} {dedup_key}")
        await self.add_message(queue, message)
        return True

    async def add_message(self, queue: str, message: str) -> None:
        self._broker.queue(queue).append(message)

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | MessageData | None:
        broker, now = self._broker, time.monotonic()
        for token, (pending, message, until) in list(broker.leases.items()):
            if until <= now and pending == from_queue:
                del broker.leases[token]
                broker.queue(pending).appendleft(message)
        if not broker.queue(from_queue):
            return None
        message = broker.queue(from_queue).popleft()
        broker.tokens += 1
        token = f"token {broker.tokens}"
        lease_s = self.message_visibility_timeout_seconds
        broker.leases[token] = from_queue, message, now + (lease_s if lease_s is not None else 1e9)
        return ClaimedMessage(message, token)

    async def move_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None
    ) -> bool:
        is_ours = await self.remove_message(from_queue, message, lease_token=lease_token)
        if is_ours:
            self._broker.queue(to_queue).append(str(message))
        return is_ours

    async def remove_message(self, queue: str, message: MessageData, *, lease_token: str | None = None) -> bool:
        return self._broker.leases.pop(lease_token or "", None) is not None

    async def renew_message_lease(self, queue: str, message: MessageData, lease_token: str) -> bool:
        found = self._broker.leases.get(lease_token)
        if found is None:
            return False
        lease_s = self.message_visibility_timeout_seconds or 0.0
        self._broker.leases[lease_token] = *found[:2], time.monotonic() + lease_s
        return True

    async def trim_queue(self, queue: str, max_length: int) -> None:
        found = self._broker.queue(queue)
        while len(found) > max_length:
            found.popleft()
