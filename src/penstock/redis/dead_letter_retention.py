"""Keeps dead letters within their limits: called after new records, and by the chores of a group."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import PenstockError
from penstock.redis.retry import Repeat

if TYPE_CHECKING:
    from penstock.redis.client import StreamClient

logger = logging.getLogger("penstock.dead_letters")
_REAPPLY_S = 1.0  # after so long the limits are applied to the next record, however few were written
_LOG_EVERY_S = 60.0
_MAX_CALLS = 10  # one after the other: a call removes sixteen large records, or a thousand small ones


class _Stream:
    """What this client knows about one stream of dead letters."""

    def __init__(self) -> None:
        self.written = 0  # since the limits were applied
        self.applied_s = self.logged_s = self.failed_s = -_LOG_EVERY_S
        self.removed = self.unlogged = 0


class DeadLetterRetention:
    """Applies the limits of one client to the dead letters that it writes.

    Guarantees: raises no error of the server, because the dead letter itself is already written. Removed records are
    counted, and logged from time to time.
    """

    def __init__(self, client: StreamClient, limits: DeadLetterLimits) -> None:
        self._client, self.limits = client, limits
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()

    @property
    def removed(self) -> dict[str, int]:
        """The number of records that this client has removed, by dead-letter stream."""
        return {key: stream.removed for key, stream in list(self._streams.items()) if stream.removed}

    async def after(self, key: str, written: int = 1, counts: str | None = None) -> int:
        """Apply the limits if they are due after `written` records; return how many old ones were removed.

        `counts` is a hash of the server in which they are counted.
        """
        if not self._is_time(key, written):
            return 0
        return await self.apply(key, counts)

    def _is_time(self, key: str, written: int) -> bool:
        with self._lock:
            stream = self._streams.setdefault(key, _Stream())
            stream.written += written
            return stream.written >= self.limits.apply_every or time.monotonic() >= stream.applied_s + _REAPPLY_S

    async def apply(self, key: str, counts: str | None = None) -> int:
        """Apply the limits now; return how many records were removed."""
        if self.limits.is_none:
            return 0
        with self._lock:
            stream = self._streams.setdefault(key, _Stream())
            stream.written, stream.applied_s = 0, time.monotonic()
        keys, total, held, refusal = [key, counts] if counts else [key], 0, 0, b""
        try:
            for _ in range(_MAX_CALLS):
                removed, is_more, held, refusal = await self._client.run(
                    "shared/limit_dead_letters", keys, self.limits.arguments, Repeat.IDEMPOTENT, waits=False
                )
                total += int(removed)
                if not is_more:
                    break
        except PenstockError as error:
            self._warn_once(key, stream, f"cannot apply dead_letter_limits: {error}")
        if refusal:
            self._warn_once(
                key, stream, f"cannot apply max_bytes of dead_letter_limits: {refusal.decode(errors='replace')}"
            )
        if held:
            self._warn_once(
                key,
                stream,
                f"records beyond {self.limits} are kept, because a consumer group has not acknowledged them",
            )
        self._count(key, stream, total)
        return total

    def _count(self, key: str, stream: _Stream, removed: int) -> None:
        with self._lock:
            stream.removed += removed
            stream.unlogged += removed
            now_s, count = time.monotonic(), stream.unlogged
            if not count or now_s < stream.logged_s + _LOG_EVERY_S:
                return
            stream.logged_s, stream.unlogged = now_s, 0
        logger.warning(
            "dead letters %s: removed the %d oldest records, beyond %s (dead_letter_limits)", key, count, self.limits,
            extra={"stream": key, "count": count},
        )  # fmt: skip

    def _warn_once(self, key: str, stream: _Stream, what: str) -> None:
        with self._lock:
            now_s = time.monotonic()
            if now_s < stream.failed_s + _LOG_EVERY_S:
                return
            stream.failed_s = now_s
        logger.warning("dead letters %s: %s", key, what, extra={"stream": key})
