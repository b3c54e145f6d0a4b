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
from collections.abc import Callable, Sequence
from functools import partial

from penstock import envelope
from penstock.config import ConsumerConfig
from penstock.delivery.dead_letters import DeadLetterWriter
from penstock.delivery.decoding import Rejected
from penstock.delivery.group import ConsumerGroup
from penstock.delivery.group_commands import Parking, Redelivery
from penstock.delivery.janitor import Janitor
from penstock.errors import NOT_OF_ONE_MESSAGE, DecodeError, GroupLost, PenstockError, TransientError
from penstock.events import EventName
from penstock.policy import Reason, before_run, unreadable
from penstock.protection import payload_of
from penstock.queue.claim import Claim
from penstock.queue.consumer_slot import ConsumerSlot
from penstock.queue.consumer_slots import ConsumerSlots
from penstock.queue.payload import decode_payload
from penstock.queue.prefetch_returner import PATIENCE_S
from penstock.queue.queue_consumer_settings import QueueConsumerSettings
from penstock.queue.unsettled import Unsettled
from penstock.redis.client import StreamClient
from penstock.redis.retry import PASSING, Trial
from penstock.runtime.aio import pause, wait_out

logger = logging.getLogger("penstock.queue")
GROUP = "queue"
_LOOK_EVERY_S = 1.0  # for messages that are due: other processes may have put some aside
_SLICE_S = 0.25  # how soon an interrupt is noticed while waiting
_PAGE = 100  # entries that the slow sweep looks at per call
_BRISK_S = 0.001  # between the end of one message and the question for the next
_BRISK_TURNS = 32  # in a row: then the next message is taken together with the end of the one before
_SHORTEST_LEASE_S = 1.0  # for taking ahead: what waits for its caller must not run out meanwhile


class QueueConsumer:
    """The messages of one queue that this process holds, each in a slot of its own.

    Guarantees: a claim whose reply got lost is found again by the next one that uses its slot, before anything new is
    taken; a message that could not be settled for an outage of Redis is settled by the next call.
    """

    def __init__(
        self, client: StreamClient, queue: str, settings: QueueConsumerSettings, emit: Callable[..., None]
    ) -> None:
        self._client, self._settings, self._emit = client, settings, emit
        self.keys = client.keys(queue)
        self._group = ConsumerGroup(client, queue, GROUP)
        lease_s = settings.lease_s or 0.0
        self._recover_every_s = min(5.0, max(0.1, lease_s / 10))
        self._cursor = "-"
        self._next_due_s = self._next_recovery_s = 0.0
        self._take_ahead_after: float = _BRISK_TURNS if lease_s >= _SHORTEST_LEASE_S else math.inf
        self._ended_s, self._brisk_turns = 0.0, 0
        self._dead_letter_writer = DeadLetterWriter(
            client, self.keys.stream, GROUP, settings.dead_letters, logger, emit
        )
        self._begin_anew()

    def _begin_anew(self) -> None:
        # In a forked process too.
        self._slots = ConsumerSlots(self._client, self.keys, GROUP, self._settings.dead_letters, self._look_soon)
        self._unsettled = Unsettled(self._slots, self._settings.retry, self._emit)
        config = ConsumerConfig(group=GROUP, max_stream_size=0)
        dead_letters = self._settings.dead_letters
        self._janitor = Janitor(
            self._client, self._group, self.keys, config, self._slots.name, dead_letters, self._emit
        )

    def _look_soon(self) -> None:
        self._next_due_s = 0.0

    # --- taking -------------------------------------------------------------------------------------

    async def claim(self, wait_s: float, is_stopped: Callable[[], bool]) -> Claim | None:
        """Take the next message, waiting for one; None = none came in time, or the wait was stopped.

        Guarantees: after the time is over nothing new is taken; what a lost reply had handed out before still is.
        """
        if self._slots.is_foreign:
            self._begin_anew()
        if self._unsettled.steps:
            await self._unsettled.settle_again()
        slot, claim = await self._slots.borrow(), None  # before the clock starts: this may wait for a hand-back
        started_s, trial, may_take_new, has_looked = time.monotonic(), None, True, False
        self._brisk_turns = self._brisk_turns + 1 if started_s - self._ended_s < _BRISK_S else 0
        deadline = started_s + wait_s
        try:
            while True:
                try:
                    claim = await self._next(slot, deadline, may_take_new, is_stopped)
                    return claim
                except GroupLost:
                    await self._restore_group(slot)
                except PASSING as error:
                    if is_stopped():
                        raise
                    trial = trial or self._settings.retry.start(started_s)
                    await self._recuperate(slot, error, trial, deadline, has_looked)
                    may_take_new = time.monotonic() < deadline
                    has_looked = not may_take_new
        finally:
            if claim is None:
                self._slots.put_back(slot)

    async def _recuperate(
        self, slot: ConsumerSlot, error: PenstockError, trial: Trial, deadline: float, has_looked: bool
    ) -> None:
        # After the deadline there is one more look at what a lost reply may have handed out, however late it is by
        # then, and hardly more than that.
        is_over = time.monotonic() >= deadline
        await slot.leave(error)  # also when this was the last try: the next call goes where the error said
        wait_s = trial.pause_after(error)
        if wait_s is None or (is_over and not slot.is_doubtful):
            raise error
        await pause(min(wait_s, max(0.01, deadline - time.monotonic())))
        if has_looked and time.monotonic() > deadline + _LOOK_EVERY_S:
            raise error

    async def _next(
        self, slot: ConsumerSlot, deadline: float, may_take_new: bool, is_stopped: Callable[[], bool]
    ) -> Claim | None:
        if not self._group.is_known:
            await self._group.ensure()
        if slot.is_doubtful and not is_stopped():
            claim = await self._resolve(slot)
            if claim is not None:
                return claim
        is_first = True
        while may_take_new and not is_stopped():
            if not is_first and time.monotonic() >= deadline:
                break
            claim = await self._take_again(slot) or await self._read(slot, deadline, is_first)
            if claim is not None:
                return claim
            is_first = False
        return None

    async def _resolve(self, slot: ConsumerSlot) -> Claim | None:
        row = slot.take_ahead(time.monotonic() - 2 * PATIENCE_S)
        if row is not None:
            return await self._hand_out(slot, *row, 1, 1, is_again=False, since_s=slot.ahead_since)
        claims, missing = await slot.take_lost()
        return await self._admit(slot, claims, missing)

    async def _read(self, slot: ConsumerSlot, deadline: float, is_first: bool) -> Claim | None:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 and not is_first:
            return None  # the looks before this one took all the time
        chores = [self._next_due_s] if self._settings.lease_s is None else [self._next_due_s, self._next_recovery_s]
        wait_s = min(remaining_s, min(chores) - time.monotonic())
        if self._settings.can_be_interrupted:
            wait_s = min(wait_s, _SLICE_S)
        row = await slot.read(max(1, int(wait_s * 1000)) if remaining_s > 0 else None)
        if row is None:
            return None
        entry_id, fields = row
        return await self._hand_out(slot, entry_id, fields, 1, 1, is_again=False)

    async def _take_again(self, slot: ConsumerSlot) -> Claim | None:
        # What is older than anything unread: messages that wait for their next attempt, then those of dead processes.
        now = time.monotonic()
        if now >= self._next_due_s:
            await self._janitor.run_due()
            wait_ms, claims, missing = await slot.take_due()
            wait_s = 0.0 if claims or missing else _LOOK_EVERY_S if wait_ms is None else wait_ms / 1000
            self._next_due_s = now + min(_LOOK_EVERY_S, wait_s)
            if claims or missing:
                return await self._admit(slot, claims, missing)
        if self._settings.lease_s is not None and now >= self._next_recovery_s:
            lease_ms = max(1, int(self._settings.lease_s * 1000))
            self._cursor, claims, missing = await slot.recover(lease_ms, self._cursor, _PAGE)
            self._next_recovery_s = now if claims or missing else now + self._recover_every_s
            if claims:
                self._emit(EventName.RECLAIMED, count=len(claims), ids=[claim.id for claim in claims])
            return await self._admit(slot, claims, missing)
        return None

    async def _admit(self, slot: ConsumerSlot, claims: Sequence[Redelivery], missing: Sequence[str]) -> Claim | None:
        # Messages that were handed out before: those whose chances are used up go to the dead letters here.
        if missing:
            self._emit(EventName.MISSING, ids=list(missing))
        for found in claims:
            deliveries, attempts = slot.counts_of(found)
            verdict = before_run(deliveries, attempts, None, 0, self._settings.limits)
            if verdict is not None:
                await self._give_up(slot, Rejected(found.id, verdict.reason, None, deliveries, attempts, found.fields))
            elif await slot.begin(found.id, deliveries, attempts):
                return await self._hand_out(slot, found.id, found.fields, deliveries + 1, attempts + 1, is_again=True)
        slot.is_sure()
        return None

    async def _hand_out(
        self, slot: ConsumerSlot, entry_id: str, fields: list[bytes], deliveries: int, attempts: int, *, is_again: bool,
        since_s: float | None = None,
    ) -> Claim | None:  # fmt: skip
        by_name = envelope.as_mapping(fields)
        try:
            expires_at_ms = envelope.expires_at(by_name)
            if expires_at_ms is not None and time.time() * 1000 >= expires_at_ms:
                await self._give_up(slot, Rejected(entry_id, Reason.EXPIRED, None, deliveries, attempts, fields))
                return None
            raw = payload_of(by_name, self.keys.stream, self._client.protection)
            data = decode_payload(raw, self._settings.is_text, self._settings.payload)
        except DecodeError as error:
            await self._give_up(slot, Rejected(entry_id, unreadable(error), error, deliveries, attempts, fields))
            return None
        expires_at = (since_s or time.monotonic()) + (self._settings.lease_s or 0.0)
        claim = Claim(slot, entry_id, fields, data, deliveries, attempts, is_again, expires_at)
        slot.is_sure()
        self._emit(EventName.CLAIMED, id=entry_id, delivery_count=deliveries, attempts=attempts, is_again=is_again)
        return claim

    async def _give_up(self, slot: ConsumerSlot, entry: Rejected) -> None:
        # Nobody is handed this message. Where its record is refused it stays pending with this slot, which is used no
        # more: the caller is told once in a lease, and the messages behind it do not wait for it.
        try:
            await self._dead_letter(slot, entry)
        except (*PASSING, GroupLost):
            raise
        except NOT_OF_ONE_MESSAGE:
            slot.is_given_up = True
            raise
        except Exception:
            delay_ms = self._dead_letter_writer.refused(entry.id)
            await slot.commands.park([Parking(entry.id, delay_ms, entry.deliveries, entry.attempts)])
        slot.is_sure()

    async def _restore_group(self, slot: ConsumerSlot) -> None:
        # Whatever is still in the stream was not finished: the group begins at its first entry.
        self._group.reset()
        position = await self._group.restore(slot.consumer)
        if position is not None:
            logger.error("group %s of %s was gone: created again at %s", GROUP, self.keys.stream, position)
            self._emit(EventName.GROUP_LOST, position=position)

    # --- settling -----------------------------------------------------------------------------------

    async def finish(
        self, claim: Claim, log: str | None = None, record: Sequence[str | int] = (), most: int = 0, *,
        must_log: bool = False, came_to_nothing: bool = False,
    ) -> bool:  # fmt: skip
        """End the life of a message, with a record in a log if one is given; False = it is somebody else's by now.

        The deduplication key of one that came to nothing is free again: its producer may try once more.
        """
        dedup_key = envelope.dedup_key(claim.fields) if came_to_nothing else None

        async def step() -> bool:
            answer = await claim.slot.commands.finish(
                claim.entry_id, log, record, most, must_log=must_log, dedup_key=dedup_key
            )
            if answer == 2:
                logger.warning("%s is done, but %s refused its record", claim.entry_id, log)
                self._emit(EventName.UNLOGGED, id=claim.entry_id, log=log)
            return answer != 0

        return await self._unsettled.settle(claim, step)

    async def finish_quickly(self, claim: Claim, is_stopped: Callable[[], bool]) -> tuple[bool, BaseException | None]:
        """Do what finish() does without a log, in one round trip and without a task.

        Returns False if it takes the long way, and the cancellation that came meanwhile. Who asks for the next message
        as soon as one has ended gets it together with the end.
        """
        ahead = None if self._brisk_turns < self._take_ahead_after or is_stopped() else self._slot_ahead()
        if ahead is not None:
            return await self._finish_and_take(claim, ahead)
        promise = claim.slot.commands.post_finish(claim.entry_id)
        if promise is None:
            return False, None
        cancelled = await wait_out(promise)
        return self._is_ended(claim, promise.result()[0]), cancelled

    def _slot_ahead(self) -> ConsumerSlot | None:
        if self._unsettled.steps or not self._slots.may_take_ahead:
            return None
        if time.monotonic() >= min(self._next_due_s, self._next_recovery_s):
            return None  # the next caller looks for what is older than anything unread
        return self._slots.borrow_sure()

    async def _finish_and_take(self, claim: Claim, ahead: ConsumerSlot) -> tuple[bool, BaseException | None]:
        ahead.begin_ahead()
        try:
            promise = claim.slot.commands.post_finish(claim.entry_id, ahead.read_ahead)
            if promise is None:
                ahead.is_sure()
                return False, None
            cancelled = await wait_out(promise)
            answer, rows = promise.result()
            if not ahead.end_ahead(rows):
                self._brisk_turns = 0
        finally:
            self._slots.put_back(ahead)
        return self._is_ended(claim, answer), cancelled

    def _is_ended(self, claim: Claim, answer: object) -> bool:
        if answer != 1:
            return False  # the long way finds out why
        self._slots.put_back(claim.slot)
        self._ended_s = time.monotonic()
        return True

    async def park(self, claim: Claim, delay_s: float, *, counts: bool) -> bool:
        """Have a message handed out again after the delay; False = it is somebody else's by now."""
        attempts = claim.attempts if counts else claim.attempts - 1

        async def step() -> bool:
            parking = Parking(claim.entry_id, round(delay_s * 1000), claim.deliveries, attempts)
            (is_parked,) = await claim.slot.commands.park([parking])
            self._next_due_s = min(self._next_due_s, time.monotonic() + delay_s)
            return is_parked

        return await self._unsettled.settle(claim, step)

    async def dead_letter(self, claim: Claim, reason: Reason, error: BaseException | None) -> bool:
        """Move a message to the dead letters; False = it is somebody else's by now."""
        entry = Rejected(claim.entry_id, reason, error, claim.deliveries, claim.attempts, claim.fields)
        return await self._unsettled.settle(claim, lambda: self._dead_letter(claim.slot, entry))

    async def _dead_letter(self, slot: ConsumerSlot, entry: Rejected) -> bool:
        settle = partial(slot.commands.dead_letter, entry.id, is_deleted=True)
        return await self._dead_letter_writer.write(entry, slot.consumer, settle) is not None

    async def renew(self, claim: Claim) -> bool:
        """Begin the lease anew; False = it is somebody else's by now. Not tried beyond the end of the lease."""
        trial = self._settings.retry.start()
        while True:
            now = time.monotonic()
            try:
                is_renewed = await claim.slot.commands.renew(
                    claim.entry_id, int((self._settings.lease_s or 1.0) * 1000)
                )
            except PASSING as error:
                wait_s = trial.pause_after(error)
                if wait_s is None or now + wait_s >= claim.expires_at:
                    raise
                await pause(wait_s)
            else:
                if is_renewed:
                    claim.expires_at = now + (self._settings.lease_s or 0.0)
                return is_renewed

    # --- the end ------------------------------------------------------------------------------------

    async def hand_back(self) -> bool:
        """Put back what a lost reply may have handed out to nobody; False = Redis is out of reach."""
        if self._slots.is_foreign:
            self._begin_anew()  # what is in doubt is the parent's, which may still process it
        is_settled = await self._unsettled.settle_again()
        doubtful = await self._slots.borrow_doubtful()
        try:
            while doubtful:
                is_settled = await self._clear_up(doubtful[-1]) and is_settled
                self._slots.put_back(doubtful.pop())
        finally:
            for slot in doubtful:  # cancelled half-way
                self._slots.put_back(slot)
        return is_settled

    async def _clear_up(self, slot: ConsumerSlot) -> bool:
        try:
            claims, _ = await slot.take_lost()
            # Nothing has begun: the counts stay as they were before it was handed out.
            parkings = [Parking(found.id, 0, *slot.counts_of(found)) for found in claims]
            if parkings:
                await slot.commands.park(parkings)
                self._look_soon()
        except GroupLost:
            pass  # the pending list went with the group
        except TransientError as error:
            logger.warning("what %s may hold was not handed back: %s", slot.consumer, error)
            return False
        slot.is_sure()
        return True

    def close(self) -> None:
        """Give up the connections of all slots that hold nothing."""
        self._slots.close()
