"""QueueConsumer: takes messages of one queue for this process, and settles them.

          read                      finish
queued ----------> processing ------------------> gone (or in a log)
                     |  ^   |  dead_letter
                     |  |   +------------------> dead letters, the deduplication key is free again
              park   v  | take_due, recover, take
                   waiting
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock import envelope
from penstock.config import ConsumerConfig
from penstock.delivery.dead_letters import DeadLetterMover
from penstock.delivery.group import ConsumerGroup, recreate
from penstock.delivery.group_commands import Parking, Redelivery
from penstock.delivery.janitor import Janitor
from penstock.errors import NOT_OF_ONE_MESSAGE, DecodeError, GroupLost, PenstockError, TransientError, WorkerDied
from penstock.events import EventName
from penstock.policy import AttemptLimits, Reason, unreadable
from penstock.protection import payload_of
from penstock.queue.consumer_slots import PATIENCE_S, ConsumerSlot, ConsumerSlots
from penstock.queue.model import GROUP, decode_payload
from penstock.queue.queue_delivery import QueueDelivery, QueueLeases
from penstock.redis.blocking_read import is_late, late_after_s, longest_wait_s
from penstock.redis.client import StreamClient
from penstock.redis.retry import RETRYABLE, RetryBudget, RetryState
from penstock.serializers import PayloadLimits

logger = logging.getLogger("penstock.queue")
Step: TypeAlias = Callable[[], Awaitable[bool]]
_DUE_CHECK_S = 1.0  # for due messages, which other processes may have put aside
_SLICE_S = 0.25  # how soon an interrupt is noticed while waiting
_PAGE = 100  # entries that the slow sweep checks per call
_QUICK_S = 0.001  # between the end of one message and the request for the next
_QUICK_TURNS = 32  # in a row, after which the next message is read together with finishing the previous one
_MIN_LEASE_S = 1.0  # for taking ahead: the lease must not expire while the message waits for its caller


@dataclass(frozen=True, slots=True)
class QueueConsumerSettings:
    """How messages of a queue are delivered."""

    lease_s: float | None  # None = at most once: messages of a dead process are not taken over
    limits: AttemptLimits
    is_text: bool
    retry: RetryBudget
    can_be_interrupted: bool
    payload: PayloadLimits


class QueueConsumer:
    """The messages of one queue that this process holds, each in its own slot.

    Guarantees: a message whose reply was lost is found by the next claim that uses its slot, before it reads a new one;
    a message that could not be settled because of an outage of Redis is settled by the next call.
    """

    def __init__(
        self, client: StreamClient, queue: str, dead_letters: str, settings: QueueConsumerSettings,
        emit: Callable[..., None], held: dict[str, QueueDelivery],
    ) -> None:  # fmt: skip
        self.client, self.settings, self.emit, self.held = client, settings, emit, held
        self._dead_letters = dead_letters
        self.keys = client.keys(queue)
        self._group = ConsumerGroup(client, queue, GROUP)
        lease_s = settings.lease_s or 0.0
        # A heartbeat that was due before the reply arrived comes at once: no need to leave time for it.
        self._late_s = math.inf if settings.lease_s is None else late_after_s(settings.lease_s, 0.0)
        self._recover_every_s = min(5.0, max(0.1, lease_s / 10))
        self._cursor = "-"
        self._next_due_s = self._next_recovery_s = 0.0
        self._take_ahead_after: float = _QUICK_TURNS if lease_s >= _MIN_LEASE_S else math.inf
        self._ended_s, self._quick_turns = 0.0, 0
        self.dead_letter_writer = DeadLetterMover(client, self.keys.stream, GROUP, dead_letters, logger, emit)
        self.leases = QueueLeases(client.settings, self.keys, settings.lease_s or 1.0)
        self._reset()

    def _reset(self) -> None:
        # In a forked process too.
        dead_letters = self._dead_letters
        self.slots = ConsumerSlots(self.client, self.keys, dead_letters, self.sweep_within)
        self._unsettled: list[tuple[QueueDelivery, Step]] = []  # processed, but perhaps not settled on the server
        config = ConsumerConfig(group=GROUP, max_stream_size=0)
        self._janitor = Janitor(self.client, self._group, self.keys, config, self.slots.name, dead_letters, self.emit)

    def sweep_within(self, delay_s: float = 0.0) -> None:
        """Check for due messages after the delay at the latest."""
        self._next_due_s = min(self._next_due_s, time.monotonic() + delay_s)

    # --- taking -------------------------------------------------------------------------------------

    async def claim(self, wait_s: float, is_stopped: Callable[[], bool]) -> QueueDelivery | None:
        """Take the next message, waiting for one; return None if none arrived in time, or the wait was stopped.

        Guarantees: after the wait, takes no new message, but still one whose reply was lost before.
        """
        if self.slots.is_foreign:
            self._reset()
        if self._unsettled:
            await self._settle_again()
        slot, delivery = await self.slots.borrow(), None  # before the clock starts: this may wait for a hand-back
        started_s, trial, may_take_new = time.monotonic(), None, True
        self._quick_turns = self._quick_turns + 1 if started_s - self._ended_s < _QUICK_S else 0
        deadline = started_s + wait_s
        try:
            while True:
                try:
                    delivery = await self._next(slot, deadline, may_take_new, is_stopped)
                    return delivery
                except GroupLost:
                    await self._restore_group(slot)
                except RETRYABLE as error:
                    if is_stopped():
                        raise
                    trial = trial or self.settings.retry.start(started_s)
                    await self._recover_slot(slot, error, trial, deadline, has_looked=not may_take_new)
                    may_take_new = time.monotonic() < deadline
        finally:
            if delivery is None:
                self.slots.put_back(slot)

    async def _recover_slot(
        self, slot: ConsumerSlot, error: PenstockError, trial: RetryState, deadline: float, *, has_looked: bool
    ) -> None:
        # After the deadline, check once more for a message whose reply was lost, however late it is, and hardly more
        # often.
        is_over = time.monotonic() >= deadline
        await slot.leave(error)  # also after the last try, so that the next call uses the server that the error named
        wait_s = trial.pause_after(error)
        if wait_s is None or (is_over and not slot.is_uncertain):
            raise error
        await self.client.rest(min(wait_s, max(0.01, deadline - time.monotonic())))
        if has_looked and time.monotonic() > deadline + _DUE_CHECK_S:
            raise error

    async def _next(
        self, slot: ConsumerSlot, deadline: float, may_take_new: bool, is_stopped: Callable[[], bool]
    ) -> QueueDelivery | None:
        if not self._group.is_known:
            await self._group.ensure()
        is_first = True
        while not is_stopped():
            if slot.is_uncertain:  # also when the last reply was late
                delivery = await self._resolve(slot)
            elif may_take_new and (is_first or time.monotonic() < deadline):
                delivery = await self._take_again(slot)
                if delivery is None and not slot.is_uncertain:
                    delivery = await self._read(slot, deadline, is_first)
                is_first = False
            else:
                break
            if delivery is not None:
                return delivery
        return None

    async def _resolve(self, slot: ConsumerSlot) -> QueueDelivery | None:
        row = slot.take_ahead(time.monotonic() - 2 * PATIENCE_S)
        if row is not None:
            return await self._hand_out(self._delivery(slot, *row, 1, 1, slot.ahead_since))
        claims, missing = await slot.take_lost()
        return await self._admit(slot, claims, missing)

    async def _read(self, slot: ConsumerSlot, deadline: float, is_first: bool) -> QueueDelivery | None:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 and not is_first:
            return None  # the checks before this took all the time
        chores = [self._next_due_s] if self.settings.lease_s is None else [self._next_due_s, self._next_recovery_s]
        wait_s = min(remaining_s, min(chores) - time.monotonic(), longest_wait_s(self._late_s))
        if self.settings.can_be_interrupted:
            wait_s = min(wait_s, _SLICE_S)
        row = await slot.read(max(1, int(wait_s * 1000)) if remaining_s > 0 else None)
        if row is None:
            return None
        return await self._hand_out(self._delivery(slot, *row, 1, 1, slot.read_sent_s))

    async def _take_again(self, slot: ConsumerSlot) -> QueueDelivery | None:
        # Messages that are older than unread ones: those due for a retry, then those of dead processes.
        now = time.monotonic()
        if now >= self._next_due_s:
            await self._janitor.run_due()
            wait_ms, claims, missing = await slot.take(slot.commands.take_due, 1)
            wait_s = 0.0 if claims or missing else _DUE_CHECK_S if wait_ms is None else wait_ms / 1000
            self._next_due_s = now + min(_DUE_CHECK_S, wait_s)
            if claims or missing:
                return await self._admit(slot, claims, missing)
        if self.settings.lease_s is not None and now >= self._next_recovery_s:
            lease_ms = max(1, int(self.settings.lease_s * 1000))
            self._cursor, claims, missing = await slot.take(slot.commands.recover, lease_ms, 1, self._cursor, _PAGE)
            self._next_recovery_s = now if claims or missing else now + self._recover_every_s
            if claims:
                self.emit(EventName.RECLAIMED, count=len(claims), ids=[claim.id for claim in claims])
            return await self._admit(slot, claims, missing)
        return None

    async def _admit(
        self, slot: ConsumerSlot, claims: Sequence[Redelivery], missing: Sequence[str]
    ) -> QueueDelivery | None:
        # Messages that were delivered before: dead-letter those that have used up their attempts.
        if missing:
            self.emit(EventName.MISSING, ids=list(missing))
        for found in claims:
            deliveries, attempts = slot.counts_of(found)
            delivery = self._delivery(slot, found.id, found.fields, deliveries, attempts, time.monotonic())
            if self.settings.limits.is_exhausted(deliveries, attempts):
                await self._give_up(delivery, Reason.MAX_DELIVERIES, WorkerDied.in_attempt(attempts))
            elif await slot.begin(found.id, deliveries, attempts):
                delivery.deliveries, delivery.attempts = deliveries + 1, attempts + 1
                return await self._hand_out(delivery, is_again=True)
        slot.mark_certain()
        return None

    def _delivery(
        self, slot: ConsumerSlot, entry_id: str, fields: list[bytes], deliveries: int, attempts: int, sent_s: float
    ) -> QueueDelivery:
        # The lease began after the command was sent: better expect its end too early than too late.
        expires_at = sent_s + (self.settings.lease_s or 0.0)
        return QueueDelivery(self, slot, entry_id, fields, deliveries, attempts, expires_at)

    async def _hand_out(self, delivery: QueueDelivery, *, is_again: bool = False) -> QueueDelivery | None:
        if is_late(delivery.expires_at - (self.settings.lease_s or 0.0), self._late_s):
            return None  # its slot stays uncertain: the next check finds out whether the message is still ours
        by_name = envelope.as_mapping(delivery.fields)
        try:
            if envelope.is_expired(by_name, time.time()):
                await self._give_up(delivery, Reason.EXPIRED, None, has_run=False)
                return None
            raw = payload_of(by_name, self.keys.stream, self.client.protection)
            delivery.payload = decode_payload(raw, self.settings.is_text, self.settings.payload)
        except DecodeError as error:
            await self._give_up(delivery, unreadable(error), error, has_run=False)
            return None
        entry_id, deliveries, slot = delivery.id, delivery.deliveries, delivery.slot
        delivery.token = f"{deliveries}:{entry_id}:{slot.consumer}"
        self.held[delivery.token] = delivery
        slot.mark_certain()
        self.emit(
            EventName.CLAIMED, id=entry_id, delivery_count=deliveries, attempts=delivery.attempts, is_again=is_again
        )
        return delivery

    async def _give_up(
        self, delivery: QueueDelivery, reason: Reason, error: BaseException | None, *, has_run: bool = True
    ) -> None:
        # No caller gets this message. If all records are refused, it stays pending with this slot: callers get the
        # error only once per lease, and other messages do not wait for it.
        try:
            await delivery.write_dead_letter(reason, error, has_run=has_run)
        except (*RETRYABLE, GroupLost):
            raise
        except NOT_OF_ONE_MESSAGE:
            delivery.slot.give_up()
            raise
        delivery.slot.mark_certain()

    async def _restore_group(self, slot: ConsumerSlot) -> None:
        # Entries that are still in the stream were not finished: the group starts at the first one.
        self._group.reset()
        await recreate(self._group, slot.consumer, logger, self.emit)

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, delivery: QueueDelivery, step: Step) -> bool:
        """Run the step that settles a message, retrying during outages; False = it is settled, or no longer ours."""
        if self.held.pop(delivery.token, None) is None:
            return False
        try:
            is_done = await self.persist(step)
        except GroupLost:
            is_done = False  # the pending list went with the group
        except RETRYABLE as error:
            # Keep its slot and its lease: no other consumer may run the message again.
            delivery.is_unsettled = True
            self._unsettled.append((delivery, step))
            self.emit(EventName.UNSETTLED, id=delivery.id, error=repr(error))
            raise
        except BaseException:
            delivery.slot.give_up()
            raise
        self.slots.put_back(delivery.slot)
        return is_done

    async def persist(self, step: Step, until_s: float = math.inf) -> bool:
        """Run a step, retrying temporary failures within the retry budget, but not after `until_s`."""
        trial = self.settings.retry.start()
        while True:
            try:
                return await step()
            except RETRYABLE as error:
                wait_s = trial.pause_after(error)
                if wait_s is None or time.monotonic() + wait_s >= until_s:
                    raise
                await self.client.rest(wait_s)

    async def _settle_again(self) -> bool:
        # Settle messages that could not be settled before; return False if some still cannot.
        while self._unsettled:
            try:
                delivery, step = self._unsettled.pop()
            except IndexError:  # another thread took the last one
                break
            try:
                await step()
            except TransientError as error:
                if not isinstance(error, GroupLost):
                    self._unsettled.append((delivery, step))
                    return False
            except PenstockError:
                logger.exception(
                    "message %s cannot be settled; it is delivered again when its lease expires", delivery.id
                )
                delivery.slot.give_up()
            except BaseException:
                self._unsettled.append((delivery, step))
                raise
            delivery.is_unsettled = False
            delivery.stop_renewing()
            self.slots.put_back(delivery.slot)  # unless it was given up
        return True

    def has_ended(self, delivery: QueueDelivery) -> None:
        """Record that the server has settled a message."""
        self.held.pop(delivery.token, None)
        self.slots.put_back(delivery.slot)
        self._ended_s = time.monotonic()

    def slot_ahead(self, is_stopped: Callable[[], bool]) -> ConsumerSlot | None:
        """Return a slot for reading the next message while one is finished, or None not to take one ahead."""
        if self._quick_turns < self._take_ahead_after or is_stopped():
            return None
        if self._unsettled or not self.slots.may_take_ahead:
            return None
        if time.monotonic() >= min(self._next_due_s, self._next_recovery_s):
            return None  # the next caller must check for messages that are older than unread ones
        return self.slots.borrow_empty()

    def has_taken_ahead(self, has_come: bool) -> None:
        """Record whether a message was taken ahead; if not, start counting quick turns again."""
        if not has_come:
            self._quick_turns = 0

    # --- the end ------------------------------------------------------------------------------------

    async def hand_back(self) -> bool:
        """Return messages of lost replies to the queue; return False if Redis cannot be reached."""
        if self.slots.is_foreign:
            self._reset()  # they belong to the parent process, which may still process them
        is_settled = await self._settle_again()
        uncertain = await self.slots.borrow_uncertain()
        try:
            while uncertain:
                is_settled = await self._return_lost(uncertain[-1]) and is_settled
                self.slots.put_back(uncertain.pop())
        finally:
            for slot in uncertain:  # cancelled half-way
                self.slots.put_back(slot)
        return is_settled

    async def _return_lost(self, slot: ConsumerSlot) -> bool:
        try:
            claims, _ = await slot.take_lost()
            # It was not processed: restore the counts from before its delivery.
            parkings = [Parking(found.id, 0, *slot.counts_of(found)) for found in claims]
            if parkings:
                await slot.commands.park(parkings)
                self.sweep_within()
        except GroupLost:
            pass  # the pending list went with the group
        except TransientError as error:
            logger.warning("messages that consumer %s may hold could not be returned: %s", slot.consumer, error)
            return False
        slot.mark_certain()
        return True

    def close(self) -> None:
        """Stop renewing leases, and close the connections of all unused slots."""
        self.leases.stop()
        self.slots.close()
