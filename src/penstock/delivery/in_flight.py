"""The messages that a consumer has in flight: delivered to it, and not settled by the server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from penstock import ids
from penstock.delivery.decoding import Rejected
from penstock.delivery.delivery import ConsumerContext, Delivery
from penstock.delivery.group_commands import Redelivery
from penstock.events import EventName
from penstock.model import StreamMessage
from penstock.runtime.aio import Flag, WaitQueue, next_tick

FreshRow: TypeAlias = tuple[bytes, list[bytes]]  # id and fields of an entry, as the server sends them


class InFlight:
    """The messages of this process that the server has not settled: the heartbeat renews exactly these.

    A message waits, new or to run again, until a worker takes it in a delivery. When its handler is done, it is
    `finished`, and `unanswered` from the moment its acknowledgement is sent until the server has answered. A failed
    message stays with its worker until the server has parked or dead-lettered it.

    A delivery is stored as a whole: adding and removing every message by its id would cost as much as decoding it.
    Deliveries are split up only when one of their messages is looked up. New messages wait as the server's entries, and
    are decoded when a worker takes them: a thousand waiting payloads would cost the garbage collector as much as
    decoding them.

    Guarantees: every thread sees a message as held from its arrival until it is settled, also while it moves from one
    list to another. Take `lock` to change something else together with it.
    """

    def __init__(self, context: ConsumerContext) -> None:
        self.context = context
        self.lock = threading.RLock()
        self._fresh: list[FreshRow] = []  # in reverse: taking from the end of a list is cheap
        self._again: deque[StreamMessage] = deque()  # waiting to run again; also in _single
        self._delivered: dict[int, list[FreshRow] | list[StreamMessage]] = {}  # with workers, by the id() of the list
        self._single: dict[str, StreamMessage | None] = {}  # None = not decoded
        self._newest = (0, 0)  # no entry with a greater id has ever been held
        self._settling: set[str] = set()  # the server is being asked to park or to dead-letter them
        self.rejected: deque[Rejected] = deque()  # to be dead-lettered without a handler
        self.finished: list[str] = []  # their handlers are done, and no acknowledgement was sent
        self.first_finished_s = 0.0
        self.has_attempts = False  # some of the finished ones have a record of attempts to delete
        self.unanswered: list[list[str]] = []  # acknowledged or handed back, and the server has not answered
        self._suspects: set[str] = set()  # those whose last holder died
        self.is_exact = False  # the server's list of our pending messages was compared with ours, and is the same
        self.is_read_under_way = False
        self.is_closed = False  # no message is handed out
        self.has_finished, self.has_parked, self.has_rejected = Flag(), Flag(), Flag()
        self._arrivals, self._room, self._again_taken = WaitQueue(), WaitQueue(), WaitQueue()
        self._low = 0

    def __len__(self) -> int:
        """Return the number of messages whose handlers are not done."""
        with self.lock:
            return len(self._fresh) + len(self._single) + sum(map(len, self._delivered.values()))

    @property
    def waiting(self) -> int:
        """How many messages wait for a worker."""
        return len(self._fresh) + len(self._again)

    @property
    def waiting_again(self) -> int:
        """How many messages wait to run again."""
        return len(self._again)

    # --- coming in ----------------------------------------------------------------------------------

    def add_fresh(self, rows: list[FreshRow]) -> int:
        """Add new entries, in the order of their ids; return how many were not held already."""
        if not rows:
            return 0
        with self.lock:
            first, last = ids.parse(rows[0][0].decode()), ids.parse(rows[-1][0].decode())
            if first <= self._newest:  # the group was set back, and may deliver again what we hold
                known = set(self.unsettled_ids())
                rows = [row for row in rows if row[0].decode() not in known]
            self._newest = max(self._newest, last)
            self._fresh[:0] = reversed(rows)
        self._arrivals.call(len(rows))
        self.context.tally.count_read(len(rows))
        return len(rows)

    def add_again(
        self, claims: Sequence[Redelivery], missing: Sequence[str] = (), *, are_suspects: bool = False
    ) -> int:
        """Add messages that were delivered before; return how many were not held already.

        `missing` ones were delivered, but their entries were trimmed or deleted: the server has settled them.
        `are_suspects` means that their last holder died.
        """
        decoded = self.context.decoder.again(claims)
        with self.lock:
            # Also finished ones, which were claimed because their acknowledgement is late.
            known = set(self.unsettled_ids())
            by_id = {message.id: message for message in decoded.messages if message.id not in known}
            rejected = [entry for entry in decoded.rejected if entry.id not in known]
            self._single.update(by_id)
            if are_suspects:
                self._suspects.update(by_id)
            self._newest = max([self._newest, *map(ids.parse, by_id)])
            self._again.extend(by_id.values())
            self._reject(rejected)
        self._arrivals.call(len(by_id))
        count = len(by_id) + len(rejected)
        self.context.tally.count_read(count)
        if missing:
            self.context.tally.count(missing=len(missing), dead=len(missing))
            self.context.emit(EventName.MISSING, ids=list(missing))
        return count

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        # Held one by one, because they are not part of a delivery.
        for entry in rejected:
            self._single[entry.id] = entry.as_message(self.context.decoder.stream)
            self.rejected.append(entry)
        if rejected:
            self.has_rejected.set()

    # --- to the workers -----------------------------------------------------------------------------

    async def take(self, limit: int) -> Delivery | None:
        """Wait for messages for one call; return None once this is closed."""
        # A handler that never awaits would starve the reader, and the server would idle, so the reader gets its turn
        # before the last messages are decoded and handled.
        while not self.is_closed:
            if len(self._fresh) > limit and self._has_room():
                self._room.call()
                await next_tick()  # before taking messages, so that they begin in order
            delivery = self._take_again(limit) if self._again else self._take_fresh(limit)
            if self._has_room():
                self._room.call()  # also when all messages were rejected
            if delivery is not None:
                return delivery
            await self._arrivals.wait_until(lambda: bool(self.is_closed or self._fresh or self._again))
        return None

    def take_now(self, limit: int) -> Delivery | None:
        """Return messages for one call, or None if there are none."""
        while self._again or self._fresh:
            delivery = self._take_again(limit) if self._again else self._take_fresh(limit)
            if delivery is not None:
                return delivery
        return None

    def _take_fresh(self, limit: int) -> Delivery | None:
        with self.lock:
            rows = self._fresh[-limit:]
            if not rows:
                return None
            del self._fresh[-limit:]
            rows.reverse()
            self._delivered[id(rows)] = rows
        decoded = self.context.decoder.fresh(rows)
        messages, rejected = decoded.messages, decoded.rejected
        with self.lock:
            if self._delivered.pop(id(rows), None) is None:  # one of them was looked up meanwhile
                messages = [message for message in messages if message.id in self._single]
                rejected = [entry for entry in rejected if entry.id in self._single]
                self._single.update({message.id: message for message in messages})
            elif messages:
                self._delivered[id(messages)] = messages
            if rejected:
                self._reject(rejected)
        return Delivery(self, messages) if messages else None

    def _take_again(self, limit: int) -> Delivery | None:
        taken: list[StreamMessage] = []
        is_suspect = False
        is_last_chance = self.context.config.limits.is_last_chance
        with suppress(IndexError):  # another thread took the last one
            while len(taken) < limit:
                message = self._again.popleft()
                self._again_taken.call()
                if is_last_chance(message.delivery_count, message.attempts):
                    if not taken:
                        return Delivery(self, [message], True, True, self._is_suspected(message))
                    self._again.appendleft(message)
                    self._arrivals.call()  # a worker that checked meanwhile has not seen it
                    break
                is_suspect = self._is_suspected(message) or is_suspect
                taken.append(message)
        return Delivery(self, taken, is_again=True, is_suspect=is_suspect) if taken else None

    def _is_suspected(self, message: StreamMessage) -> bool:
        is_suspect = message.id in self._suspects
        self._suspects.discard(message.id)
        return is_suspect

    # --- from the workers ---------------------------------------------------------------------------

    def finish(self, messages: list[StreamMessage], done: list[str], is_again: bool) -> None:
        """Mark messages as finished; `done` are their ids. `is_again`: they have a record of attempts to delete."""
        with self.lock:  # else another thread might count a message twice, or not at all
            # A message that was handed back meanwhile is no longer ours to settle.
            found = self.release(messages)
            if not self.finished:
                self.first_finished_s = time.monotonic()
            self.finished += done if found is messages else [message.id for message in found]
            self.has_attempts = self.has_attempts or is_again
        if self.finished and not self.has_finished.is_set():
            self.has_finished.set()

    def release(self, messages: list[StreamMessage]) -> list[StreamMessage]:
        """Remove messages; return those that were still held: the same list if it is a whole delivery."""
        with self.lock:
            if self._delivered.pop(id(messages), None) is not None:
                return messages
            single = self._by_id()
            found = [message for message in messages if single.get(message.id) is message]
            for message in found:
                del single[message.id]
            return found

    def answered(self, batch: list[str]) -> None:
        """Remove a list of ids from `unanswered`: the server has answered, or its reply was lost."""
        with self.lock:
            del self.unanswered[next(index for index, other in enumerate(self.unanswered) if other is batch)]

    def park(self, messages: list[StreamMessage]) -> None:
        """Remove messages that wait for their next run; they stay pending with this consumer."""
        self.release(messages)
        self.is_exact = False
        self.has_parked.set()

    @contextmanager
    def settling(self, messages: Iterable[StreamMessage]) -> Iterator[None]:
        """Keep renewals from reporting messages as lost while the server settles them: its reply decides."""
        ids = [message.id for message in messages]
        self._settling.update(ids)
        try:
            yield
        finally:
            self._settling.difference_update(ids)

    # --- one by one ---------------------------------------------------------------------------------

    def _by_id(self) -> dict[str, StreamMessage | None]:
        for delivered in self._delivered.values():
            for item in delivered:
                if isinstance(item, StreamMessage):
                    self._single[item.id] = item
                else:
                    self._single[item[0].decode()] = None
        self._delivered.clear()
        return self._single

    def ids(self) -> list[str]:
        """Return the ids of all messages whose handlers are not done."""
        with self.lock:
            return [*self._by_id(), *(row[0].decode() for row in self._fresh)]

    def unsettled_ids(self) -> list[str]:
        """Return the ids of all messages that the server has not settled, including finished ones."""
        with self.lock:
            return [*self.ids(), *self.finished, *(entry_id for batch in self.unanswered for entry_id in batch)]

    def find(self, wanted: Iterable[str]) -> dict[str, StreamMessage | None]:
        """Return the wanted messages whose handlers are not done, by id; None = not decoded yet."""
        with self.lock:
            single, unseen, found = self._by_id(), set[bytes](), dict[str, StreamMessage | None]()
            for entry_id in wanted:
                if entry_id in single:
                    found[entry_id] = single[entry_id]
                else:
                    unseen.add(entry_id.encode())
            if unseen:
                found.update((row[0].decode(), None) for row in self._fresh if row[0] in unseen)
            return found

    def drop(self, unwanted: Iterable[str]) -> list[str]:
        """Remove messages by their ids; return the ids of those that were held."""
        with self.lock:
            found = self.find(unwanted)
            waiting = {entry_id.encode() for entry_id in found if self._single.pop(entry_id, None) is None}
            if waiting:
                self._fresh[:] = [row for row in self._fresh if row[0] not in waiting]
            return list(found)

    def lose(self, lost: Iterable[str]) -> None:
        """Remove messages whose leases were lost, whether or not a worker has taken them."""
        with self.lock:
            found = self.find(set(lost) - self._settling)
            for message in found.values():
                if message is not None:
                    message.lease_lost = True
            self.drop(found)
        if found:
            self.count_lost(list(found))

    def count_lost(self, lost: list[str]) -> None:
        """Count messages that now belong to another consumer."""
        self.context.tally.count(lease_lost=len(lost))
        self.context.emit(EventName.LEASE_LOST, ids=lost)

    # --- the reader's side --------------------------------------------------------------------------

    def _has_room(self) -> bool:
        # For a read that is not under way yet.
        return not self.is_read_under_way and len(self._fresh) <= self._low

    async def wait_for_room(self, low: int) -> None:
        """Wait until at most `low` new messages are waiting, or this is closed."""
        self._low = low
        if len(self._fresh) > low and not self.is_closed:
            await self._room.wait_until(lambda: self.is_closed or len(self._fresh) <= low)

    async def wait_for_few_again(self, few: int) -> None:
        """Wait until fewer than `few` messages are waiting to run again, or this is closed."""
        await self._again_taken.wait_until(lambda: self.is_closed or len(self._again) < few)

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop handing out messages, and end all waits."""
        self.is_closed = True
        for waiters in (self._arrivals, self._room, self._again_taken):
            waiters.call(1_000_000)
        for event in (self.has_finished, self.has_parked, self.has_rejected):
            event.set()

    def reopen(self) -> None:
        """Hand out messages again."""
        self.is_closed = False
        self.has_parked.clear()
        if not self.finished:
            self.has_finished.clear()
        if not self.rejected:
            self.has_rejected.clear()

    def withdraw_waiting(self) -> tuple[list[str], list[StreamMessage]]:
        """Take waiting messages away from the workers: return the ids of new ones, and the messages to run again.

        All of them stay held.
        """
        with self.lock:
            fresh = [row[0].decode() for row in reversed(self._fresh)]
            self._single.update(dict.fromkeys(fresh))
            self._fresh.clear()
        again: list[StreamMessage] = []
        with suppress(IndexError):
            # One by one, because a worker thread may still take one.
            while True:
                again.append(self._again.popleft())
        self._suspects.clear()
        return fresh, again
