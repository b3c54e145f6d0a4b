"""ConsumerSlots: the consumers of one process at one queue, and who may have the next one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from penstock.keys import StreamKeys
from penstock.queue.consumer_slot import ConsumerSlot
from penstock.queue.prefetch_returner import PATIENCE_S, PrefetchReturner
from penstock.redis.client import StreamClient
from penstock.runtime.aio import Event
from penstock.worker_name import unique_worker_name


class ConsumerSlots:
    """Lends slots to callers. One that may hold a message which nobody has in hand is lent first.

    Guarantees: a message that was taken ahead and that nobody comes for is put back, after which `on_return` is called.
    No slot that holds nothing is lent meanwhile: its caller would read a newer message. A forked process needs slots of
    its own: the names and connections of these are the parent's.
    """

    def __init__(
        self, client: StreamClient, keys: StreamKeys, group: str, dead_letters: str, on_return: Callable[[], None]
    ) -> None:
        self._client, self._keys, self._group, self._dead_letters = client, keys, group, dead_letters
        self._on_return = on_return
        self.name, self._made, self._process = unique_worker_name(group), 0, os.getpid()
        self._free: list[ConsumerSlot] = []
        self._lock = threading.Lock()
        self._returner: PrefetchReturner[ConsumerSlot] | None = None
        self._is_returning = False  # whether the returner is putting a message back now
        self._waiting: list[Event] = []  # one for each caller who waits for that: they may be in several event loops
        self._has_taken_ahead = False  # since the returner looked last
        self.may_take_ahead = True

    @property
    def is_foreign(self) -> bool:
        """Whether they are those of another process: of the parent of a forked one."""
        return self._process != os.getpid()

    async def borrow(self) -> ConsumerSlot:
        """Return a slot that nobody else has, once no message is being put back that an empty one would overtake."""
        while True:
            with self._lock:
                if not self._is_returning or self._is_one_doubtful:
                    return self._free.pop() if self._free else self._make()
            await self._wait_for_return()

    def borrow_sure(self) -> ConsumerSlot | None:
        """Return a slot that holds nothing; None = one is in doubt or a message is on its way back: that is first."""
        with self._lock:
            if self._is_returning or self._is_one_doubtful:
                return None
            return self._free.pop() if self._free else self._make()

    @property
    def _is_one_doubtful(self) -> bool:
        return bool(self._free) and self._free[-1].is_doubtful

    def _make(self) -> ConsumerSlot:
        self._made += 1
        return ConsumerSlot(self._client, self._keys, self._group, f"{self.name}-{self._made}", self._dead_letters)

    def put_back(self, slot: ConsumerSlot) -> None:
        """Take a slot that nobody uses any more, with whatever is in doubt."""
        with self._lock:
            if slot.is_given_up or self.is_foreign or not slot.consumer.startswith(self.name):
                return
            if slot.has_ahead:
                self._watch()
            is_next = slot.is_doubtful or not self._is_one_doubtful
            self._free.insert(len(self._free) if is_next else 0, slot)

    async def borrow_doubtful(self) -> list[ConsumerSlot]:
        """Return all slots that may hold a message which nobody has in hand, once none is being put back."""
        while True:
            with self._lock:
                if not self._is_returning:
                    doubtful = [slot for slot in self._free if slot.is_doubtful]
                    self._free = [slot for slot in self._free if not slot.is_doubtful]
                    return doubtful
            await self._wait_for_return()

    def close(self) -> None:
        """Give up the connections of all slots that nobody uses."""
        with self._lock:
            free = list(self._free)
        for slot in free:
            slot.close()

    # --- what was taken ahead -----------------------------------------------------------------------

    def _watch(self) -> None:
        self._has_taken_ahead = True
        if self._returner is None:
            returner = PrefetchReturner(
                self._client.settings, self._keys, self._group, self._abandoned, self._take_back
            )
            try:
                returner.start()
                self._returner = returner
            except RuntimeError:  # no more threads, or the interpreter is about to end: the next call looks after it
                self.may_take_ahead = False

    def _abandoned(self) -> list[ConsumerSlot] | None:
        # For the thread of the returner, which has what it gets.
        with self._lock:
            if not threading.main_thread().is_alive():
                self.may_take_ahead = False  # the interpreter waits for that thread
            latest_s = time.monotonic() - PATIENCE_S
            waiting = [slot for slot in self._free if slot.has_ahead]
            if not waiting and not self._has_taken_ahead:
                self._returner = None
                return None
            self._has_taken_ahead = False
            # One at a time: callers who come meanwhile have the others, and wait for this one only.
            abandoned = [slot for slot in waiting if slot.ahead_since < latest_s][:1]
            if abandoned:
                self._free.remove(abandoned[0])
                self._is_returning = True
            return abandoned

    def _take_back(self, slot: ConsumerSlot) -> None:
        slot.forget_ahead()
        self._on_return()
        self.put_back(slot)
        with self._lock:
            self._is_returning = False
            waiting, self._waiting = self._waiting, []
        for returned in waiting:
            returned.set_from_outside()

    async def _wait_for_return(self) -> None:
        with self._lock:
            if not self._is_returning:
                return
            returned = Event()
            self._waiting.append(returned)
        await returned.wait()
