"""StreamDelivery: one message in the hands of this process, and the ways in which it ends."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock import dead_letter_record, envelope
from penstock.delivery.decoding import Rejected
from penstock.delivery.group_commands import Parking
from penstock.errors import PenstockError
from penstock.events import EventName
from penstock.policy import Reason
from penstock.queue.abstract_gateway import StopRenewal
from penstock.queue.consumer_slots import ConsumerSlot
from penstock.queue.payload import MessageData
from penstock.queue.queue_leases import Lease
from penstock.redis.retry import OPERATION_TTL_S, PASSING, Repeat
from penstock.runtime.aio import call_in_loop, home, pause, wait_out

if TYPE_CHECKING:
    from penstock.queue.queue_consumer import QueueConsumer

logger = logging.getLogger("penstock.queue")


class StreamDelivery(msgspec.Struct, eq=False):
    """A message and the slot that holds it, from the moment it was handed out until it is settled.

    Guarantees: it is settled once; every later try returns False, as one does whose message is another consumer's by
    now. What an outage of Redis outlasts is settled by the next call of the queue.
    """

    consumer: QueueConsumer
    slot: ConsumerSlot
    id: str
    fields: list[bytes]
    deliveries: int
    attempts: int
    expires_at: float  # of time.monotonic(), unless it is renewed
    payload: MessageData = b""
    token: str = ""  # deliveries, id and consumer: no two deliveries have the same

    async def finish(self, log: str | None = None, max_length: int | None = None) -> bool:
        """End the life of the message, with a record in a log that keeps `max_length` of them if one is given."""
        return await self._end(log, max_length, None, has_failed=False)

    async def discard(self, error: BaseException | None, log: str | None = None, max_length: int | None = None) -> bool:
        """End the life of a message that failed and is not tried again, with a record if there is a log.

        It exists nowhere else: it stays if its record is refused. Its deduplication key is free again: its producer may
        try once more.
        """
        return await self._end(log, max_length, error, has_failed=True)

    async def _end(
        self, log: str | None, max_length: int | None, error: BaseException | None, *, has_failed: bool
    ) -> bool:
        dedup_key = envelope.dedup_key(self.fields) if has_failed else None
        stream = None if log is None else self.consumer.client.keys(log).stream
        record = () if log is None else self._log_record(error)

        async def step() -> bool:
            answer = await self.slot.commands.finish(
                self.id, stream, record, max_length or 0, must_log=has_failed, dedup_key=dedup_key
            )
            if answer == 2:
                logger.warning("%s is done, but %s refused its record", self.id, stream)
                self.consumer.emit(EventName.UNLOGGED, id=self.id, log=stream)
            return answer != 0

        return await self.consumer.settle(self, step)

    async def finish_quickly(self, is_stopped: Callable[[], bool]) -> tuple[bool, BaseException | None]:
        """Do what finish() does without a log, in one round trip and without a task.

        Returns False if it takes the long way, and the cancellation that came meanwhile. Who asks for the next message
        as soon as one has ended gets it together with the end, unless `is_stopped` says that there is no next one.
        """
        if self.token not in self.consumer.held:
            return False, None
        ahead = self.consumer.slot_ahead(is_stopped)
        if ahead is not None:
            return await self._finish_and_take(ahead)
        promise = self.slot.commands.post_finish(self.id)
        if promise is None:
            return False, None
        cancelled = await wait_out(promise)
        return self._is_ended(promise.result()[0]), cancelled

    async def _finish_and_take(self, ahead: ConsumerSlot) -> tuple[bool, BaseException | None]:
        ahead.begin_ahead()
        try:
            promise = self.slot.commands.post_finish(self.id, ahead.read_ahead)
            if promise is None:
                ahead.is_sure()
                return False, None
            cancelled = await wait_out(promise)
            answer, rows = promise.result()
            self.consumer.has_taken_ahead(ahead.end_ahead(rows))
        finally:
            self.consumer.slots.put_back(ahead)
        return self._is_ended(answer), cancelled

    def _is_ended(self, answer: object) -> bool:
        if answer != 1:
            return False  # the long way finds out why
        self.consumer.has_ended(self)
        return True

    async def note_failure(self, error: BaseException, log: str, max_length: int | None) -> None:
        """Record in a log that an attempt failed, whatever becomes of the message; best effort."""
        client = self.consumer.client
        stream = client.keys(log).stream
        most = ("MAXLEN", max_length) if max_length else ()
        keys = [stream, self.consumer.keys.operation(secrets.token_hex(8))]
        args = [OPERATION_TTL_S, "XADD", *most, "*", *self.fields, *self._log_record(error)]
        try:
            await client.run("queue/once", keys, args, Repeat.IDEMPOTENT)
        except PenstockError as refusal:
            logger.warning("%s failed, but %s refused its record: %s", self.id, stream, refusal)
            self.consumer.emit(EventName.UNLOGGED, id=self.id, log=stream)

    def _log_record(self, error: BaseException | None) -> list[str | int]:
        # What a log says of a message beside its own fields.
        record: list[str | int] = ["log_id", self.id, "log_attempts", self.attempts]
        if error is not None:
            text = dead_letter_record.said_by(error)
            record += ["log_error", dead_letter_record.class_of(error), "log_error_text", text]
        return record

    async def retry(self, delay_s: float, *, counts: bool) -> bool:
        """Have the message handed out again after the delay; `counts` tells that this was an attempt."""
        attempts = self.attempts if counts else self.attempts - 1

        async def step() -> bool:
            parking = Parking(self.id, round(delay_s * 1000), self.deliveries, attempts)
            (is_parked,) = await self.slot.commands.park([parking])
            self.consumer.look_within(delay_s)
            return is_parked

        return await self.consumer.settle(self, step)

    async def dead_letter(self, reason: Reason | None, error: BaseException | None) -> bool:
        """Move the message to the dead letters, with all that is known of it."""

        async def step() -> bool:
            return await self.write_dead_letter(reason or Reason.MAX_DELIVERIES, error)

        return await self.consumer.settle(self, step)

    async def write_dead_letter(self, reason: Reason, error: BaseException | None) -> bool:
        """Move the message to the dead letters in one try; False = it is somebody else's by now."""
        entry = Rejected(self.id, reason, error, self.deliveries, self.attempts, self.fields)
        settle = partial(self.slot.commands.dead_letter, self.id, is_deleted=True)
        return await self.consumer.dead_letter_writer.write(entry, self.slot.consumer, settle) is not None

    # --- the lease ----------------------------------------------------------------------------------

    async def renew(self) -> bool:
        """Begin the lease anew; False = it is somebody else's by now. Not tried beyond the end of the lease."""
        lease_s = self.consumer.settings.lease_s
        trial = self.consumer.settings.retry.start()
        while True:
            now = time.monotonic()
            try:
                is_renewed = await self.slot.commands.renew(self.id, int((lease_s or 1.0) * 1000))
            except PASSING as error:
                wait_s = trial.pause_after(error)
                if wait_s is None or now + wait_s >= self.expires_at:
                    raise
                await pause(wait_s)
            else:
                if is_renewed:
                    self.expires_at = now + (lease_s or 0.0)
                return is_renewed

    async def keep_lease(self, interval_s: float, max_s: float, on_lost: Callable[[str], None]) -> StopRenewal:
        """Renew the lease every interval from a thread, whatever the handler does to its event loop."""
        here, emit = home(), self.consumer.emit
        lease = Lease(
            self.slot.consumer,
            self.id,
            interval_s,
            self.expires_at,
            self.expires_at - (self.consumer.settings.lease_s or 0.0) + max_s,
            lambda: call_in_loop(here, lambda: emit(EventName.RENEWED, id=self.id)),
            on_lost,
        )
        leases = self.consumer.leases
        leases.keep(lease)

        async def stop() -> None:
            leases.leave(lease)

        return stop
