"""Messages whose handlers have ended, and whose end the server may not have heard."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from penstock.errors import GroupLost, PenstockError, TransientError
from penstock.events import EventName
from penstock.queue.claim import Claim
from penstock.queue.consumer_slots import ConsumerSlots
from penstock.redis.retry import PASSING, RetryBudget
from penstock.runtime.aio import pause

logger = logging.getLogger("penstock.queue")
Step: TypeAlias = Callable[[], Awaitable[Any]]


class Unsettled:
    """Settles messages, through outages of Redis; what one outlasts is kept and settled later."""

    def __init__(self, slots: ConsumerSlots, retry: RetryBudget, emit: Callable[..., None]) -> None:
        self._slots, self._retry, self._emit = slots, retry, emit
        self.steps: list[tuple[Claim, Step]] = []

    async def settle(self, claim: Claim, step: Step) -> bool:
        """Take the step that ends a message; False = it is somebody else's by now."""
        trial = self._retry.start()
        while True:
            try:
                is_done = bool(await step())
            except GroupLost:
                is_done = False  # the pending list went with the group
            except PASSING as error:
                wait_s = trial.pause_after(error)
                if wait_s is not None:
                    await pause(wait_s)
                    continue
                self.steps.append((claim, step))
                self._emit(EventName.UNSETTLED, id=claim.entry_id, error=repr(error))
                raise
            # Not after an error: the slot may hold the message until its lease runs out.
            self._slots.put_back(claim.slot)
            return is_done

    async def settle_again(self) -> bool:
        """Settle what could not be settled before; False = some still cannot."""
        while self.steps:
            try:
                claim, step = self.steps.pop()
            except IndexError:  # another thread took the last one
                break
            try:
                await step()
            except TransientError as error:
                if not isinstance(error, GroupLost):
                    self.steps.append((claim, step))
                    return False
            except PenstockError:
                # Refused for good: the message stays pending until its lease runs out, and its slot with it.
                logger.exception("%s cannot be settled", claim.entry_id)
                continue
            except BaseException:
                self.steps.append((claim, step))
                raise
            self._slots.put_back(claim.slot)
        return True
