"""Chores of a group that one consumer does for all: retention, also of dead letters, and removing dead consumers."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.config import ConsumerConfig
from penstock.delivery.group import ConsumerGroup
from penstock.errors import ConnectionLost, OutOfMemory
from penstock.events import EventName
from penstock.keys import StreamKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat


async def is_elected(client: StreamClient, key: str, consumer: str, interval_ms: int) -> bool:
    """Tell whether this consumer does the chores of the interval; the first one that asks does."""
    try:
        return await client.call(key, "SET", key, consumer, "NX", "PX", interval_ms, repeat=Repeat.ONCE) is not None
    except (OutOfMemory, ConnectionLost):
        return True  # rather twice than never: trimming is what makes room, and a lost reply may have been a yes


class Janitor:
    """Does each chore once per interval, whichever consumer of the group comes first."""

    def __init__(
        self,
        client: StreamClient,
        group: ConsumerGroup,
        keys: StreamKeys,
        config: ConsumerConfig,
        consumer: str,
        dead_letters: str,
        emit: Callable[..., None],
    ) -> None:
        self._client, self._group, self._keys, self._config = client, group, keys, config
        self._consumer, self._dead_letters, self._emit = consumer, dead_letters, emit
        self._next_s = time.monotonic() + config.retention_interval_ms / 1000

    async def run_due(self) -> None:
        """Do the chores if their time has come and nobody else did them."""
        interval_ms = self._config.retention_interval_ms
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + interval_ms / 1000
        key = self._keys.chore("upkeep", self._config.group)
        if not await is_elected(self._client, key, self._consumer, max(1, interval_ms - interval_ms // 10)):
            return
        removed = await self._group.remove_dead_consumers(self._config.consumer_ttl_ms, except_for=self._consumer)
        if removed:
            self._emit(EventName.CONSUMER_REMOVED, names=removed)
        trimmed = await self._group.trim(self._config.max_stream_size)
        if trimmed:
            self._emit(EventName.TRIMMED, count=trimmed)
        # For those that grow too old while no others are written.
        old = await self._client.dead_letter_retention.apply(self._dead_letters)
        if old:
            self._emit(EventName.DEAD_LETTERS_TRIMMED, count=old)
