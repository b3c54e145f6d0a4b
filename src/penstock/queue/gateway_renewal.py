"""Renews one lease through a gateway that has no better way: beside the handler, in its event loop or in a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from penstock.errors import text_of
from penstock.queue.model import ClaimedMessage
from penstock.queue.payload import MessageData
from penstock.runtime.aio import Event, TaskGroup

logger = logging.getLogger("penstock.queue")


class GatewayRenewal:
    """Renews until it is told to stop, the lease is lost, or the handler takes too long."""

    def __init__(
        self,
        renew: Callable[[str, MessageData, str], Awaitable[bool]],
        queue: str,
        claimed: ClaimedMessage,
        interval_s: float,
        max_s: float,
        on_lost: Callable[[str], None],
    ) -> None:
        self._renew, self._queue, self._claimed = renew, queue, claimed
        self._interval_s, self._until_s, self._on_lost = interval_s, time.monotonic() + max_s, on_lost
        self._stopping = Event()
        self._activities = TaskGroup(lambda: None)

    def start(self) -> Callable[[], Awaitable[None]]:
        """Begin; the function that is returned ends it."""
        self._activities.start(self._run)
        return self._stop

    async def _run(self) -> None:
        reason = ""
        while not reason:
            if await self._stopping.wait(self._interval_s):
                return
            reason = await self._why_not()
        if not self._stopping.is_set():
            self._on_lost(reason)

    async def _why_not(self) -> str:
        # Renew the lease; return why it could not be, or nothing.
        if time.monotonic() >= self._until_s:
            return "the handler takes longer than max_processing_seconds: its lease is renewed no more"
        try:
            if await self._renew(self._queue, self._claimed.stored_message, self._claimed.lease_token):
                return ""
        except Exception as error:
            logger.warning("a lease of %s was not renewed: %s", self._queue, text_of(error))
            return f"the renewal failed: {text_of(error)}"
        return "the message belongs to another consumer by now"

    async def _stop(self) -> None:
        self._stopping.set()
        if not await self._activities.join(1.0):
            await self._activities.cancel()
