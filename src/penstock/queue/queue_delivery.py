"""QueueDelivery: one message that this process holds, how it is settled, and its lease."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock import dead_letter_record, envelope
from penstock.delivery.decoding import Rejected
from penstock.delivery.group_commands import Parking
from penstock.delivery.leases import Held, Renewable, Renewal, call_in_thread
from penstock.errors import PenstockError
from penstock.events import EventName
from penstock.keys import StreamKeys
from penstock.policy import Reason
from penstock.queue.abstract_gateway import StopRenewal
from penstock.queue.consumer_slots import ConsumerSlot
from penstock.queue.model import GROUP, MessageData
from penstock.redis.retry import OPERATION_TTL_S, Repeat
from penstock.redis.settings import ConnectionSettings
from penstock.redis.translate import checked
from penstock.runtime.aio import call_in_loop, connection_scope, wait_out

if TYPE_CHECKING:
    from penstock.queue.queue_consumer import QueueConsumer

logger = logging.getLogger("penstock.queue")
_MIN_PATIENCE_S = 0.05


class QueueDelivery(msgspec.Struct, eq=False):
    """A message and its slot, from its delivery until it is settled.

    Guarantees: it is settled once; later tries return False, as do those for a message that another consumer has. If an
    outage of Redis outlasts the retry budget, the next call of the queue settles it; until then, its lease is renewed.
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
    lease: Lease | None = None  # None = not renewed
    is_unsettled: bool = False  # processed, but perhaps not settled on the server

    async def finish(self, log: str | None = None, max_length: int | None = None) -> bool:
        """Finish the message, with a record in a log, if given, that keeps `max_length` records."""
        return await self._end(log, max_length, None, has_failed=False)

    async def discard(self, error: BaseException | None, log: str | None = None, max_length: int | None = None) -> bool:
        """Finish a message that failed and is not retried, with a record if there is a log.

        If the record cannot be written, the message stays, because it exists nowhere else. Releases its deduplication
        key, so that its producer may publish it again.
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
                logger.warning("message %s is finished, but its record could not be added to %s", self.id, stream)
                self.consumer.emit(EventName.UNLOGGED, id=self.id, log=stream)
            return answer != 0

        return await self.consumer.settle(self, step)

    async def finish_quickly(self, is_stopped: Callable[[], bool]) -> tuple[bool, BaseException | None]:
        """Finish without a log in one round trip, without a task; return whether that worked, and any cancellation.

        If it did not, call finish(). A caller that asks for the next message right after finishing one gets it in the
        same round trip, unless `is_stopped` returns True.
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
                ahead.mark_certain()
                return False, None
            cancelled = await wait_out(promise)
            answer, rows = promise.result()
            self.consumer.has_taken_ahead(ahead.end_ahead(rows))
        finally:
            self.consumer.slots.put_back(ahead)
        return self._is_ended(answer), cancelled

    def _is_ended(self, answer: object) -> bool:
        if answer != 1:
            return False  # finish() finds out why
        self.consumer.has_ended(self)
        return True

    async def note_failure(self, error: BaseException, log: str, max_length: int | None) -> None:
        """Record a failed attempt in a log, regardless of what happens to the message; best effort."""
        client = self.consumer.client
        stream = client.keys(log).stream
        most = ("MAXLEN", max_length) if max_length else ()
        keys = [stream, self.consumer.keys.operation(secrets.token_hex(8))]
        kept, cut = dead_letter_record.kept_fields(self.fields)
        marks = (dead_letter_record.CUT, cut) if cut else ()
        args = [OPERATION_TTL_S, "XADD", *most, "*", *kept, *marks, *self._log_record(error)]
        try:
            await client.run("queue/once", keys, args, Repeat.IDEMPOTENT)
        except PenstockError as refusal:
            logger.warning("message %s failed, but its record could not be added to %s: %s", self.id, stream, refusal)
            self.consumer.emit(EventName.UNLOGGED, id=self.id, log=stream)

    def _log_record(self, error: BaseException | None) -> list[str | int]:
        # The fields that a log adds to those of the message.
        record: list[str | int] = ["log_id", self.id, "log_attempts", self.attempts]
        if error is not None:
            text = dead_letter_record.kept_text(error)
            record += ["log_error", dead_letter_record.class_of(error), "log_error_text", text]
        return record

    async def retry(self, delay_s: float, *, counts: bool) -> bool:
        """Retry the message after the delay; with `counts`, this run counts as an attempt."""
        attempts = self.attempts if counts else self.attempts - 1

        async def step() -> bool:
            return await self._park(round(delay_s * 1000), self.deliveries, attempts)

        return await self.consumer.settle(self, step)

    async def _park(self, delay_ms: int, deliveries: int, attempts: int) -> bool:
        (is_parked,) = await self.slot.commands.park([Parking(self.id, delay_ms, deliveries, attempts)])
        self.consumer.sweep_within(delay_ms / 1000)
        return is_parked

    async def dead_letter(self, reason: Reason | None, error: BaseException | None) -> bool:
        """Move the message to the dead letters, with everything known about it."""

        async def step() -> bool:
            return await self.write_dead_letter(reason or Reason.MAX_DELIVERIES, error)

        return await self.consumer.settle(self, step)

    async def write_dead_letter(self, reason: Reason, error: BaseException | None, *, has_run: bool = True) -> bool:
        """Move the message to the dead letters, without retries; False = it is no longer ours.

        If only this record cannot be written, or there is no room for any, the message is parked.
        """
        entry = Rejected(self.id, reason, error, self.deliveries, self.attempts, self.fields)
        settle = partial(self.slot.commands.dead_letter, self.id, is_deleted=True)
        writer = self.consumer.dead_letter_writer
        try:
            return await writer.write(entry, self.slot.consumer, settle) is not None
        except Exception as refusal:
            delay_ms, back = writer.refused(refusal, self.id), 0 if has_run else 1
            return await self._park(delay_ms, self.deliveries - back, self.attempts - back)

    # --- the lease ----------------------------------------------------------------------------------

    async def renew(self) -> bool:
        """Renew the lease; False = it is no longer ours. Not retried after the lease has expired."""
        lease_s = self.consumer.settings.lease_s or 1.0

        async def step() -> bool:
            sent_at = time.monotonic()
            is_renewed = await self.slot.commands.renew(self.id, int(lease_s * 1000))
            if is_renewed:
                self.expires_at = sent_at + lease_s
            return is_renewed

        return await self.consumer.persist(step, self.expires_at)

    async def keep_lease(self, interval_s: float, max_s: float, on_lost: Callable[[str], None]) -> StopRenewal:
        """Renew the lease every interval from a thread, so that a handler that blocks its event loop keeps it."""
        began_s = self.expires_at - (self.consumer.settings.lease_s or 0.0)  # before the message arrived
        longest_until = time.monotonic() + max_s
        lease = Lease(self, interval_s, longest_until, on_lost, connection_scope(), began_s + interval_s)
        self.lease = lease
        self.consumer.leases.keep(lease)

        async def stop() -> None:
            if not self.is_unsettled:
                self.stop_renewing()

        return stop

    def stop_renewing(self) -> None:
        """Stop renewing the lease."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self.consumer.leases.leave(lease)


@dataclass(eq=False, slots=True)
class Lease:
    """The lease of a message, renewed until its handler has ended and the message is settled."""

    delivery: QueueDelivery
    interval_s: float
    longest_until: float  # the leases of hung handlers are not renewed any longer
    on_lost: Callable[[str], None]
    scope: object
    due_at: float


class QueueLeases(Renewable):
    """Renews the leases of one queue when each is due, over the blocking transport.

    Guarantees: never renews an expired lease; reports once a lease that is lost, that could not be renewed in time, or
    that is no longer renewed because its handler took too long.
    """

    def __init__(self, settings: ConnectionSettings, keys: StreamKeys, lease_s: float) -> None:
        # Commands time out after a third of the lease, which leaves time for another try.
        patience_s = max(_MIN_PATIENCE_S, lease_s / 3)
        super().__init__(settings, keys.stream, lease_s, patience_s, f"leases of {keys.stream}", logger)
        self._keys, self._lease_s = keys, lease_s
        self._leases: set[Lease] = set()
        self._tried: list[Lease] = []

    def keep(self, lease: Lease) -> None:
        """Renew the lease from now on."""
        thread = self._thread
        with thread.changed:
            if not thread.has(self):
                self._leases.clear()  # closed since, or those of the parent of this forked process
                self.start()
            self._leases.add(lease)
            if lease.due_at < thread.wakes_s:
                thread.changed.notify_all()

    def leave(self, lease: Lease) -> None:
        """Stop renewing it, and report nothing about it from now on."""
        with self._thread.changed:
            self._leases.discard(lease)

    @property
    def due_s(self) -> float:
        """When the first lease is due."""
        return min((lease.due_at for lease in self._leases), default=float("inf"))

    @property
    def early_s(self) -> float:
        """Each lease has its own due time."""
        return 0.0

    @property
    def timeout_s(self) -> float:
        """How long replies may take: not beyond the end of a lease."""
        left_s = min((lease.delivery.expires_at for lease in self._tried), default=float("inf")) - time.monotonic()
        return max(_MIN_PATIENCE_S, min(self._patience_s, left_s))

    def renew(self) -> Renewal:
        """Renew what is due."""
        now = time.monotonic()
        with self._thread.changed:
            due = [lease for lease in self._leases if lease.due_at <= now]
        self._tried = tried = [lease for lease in due if self._may_try(lease, now)]
        held = [Held(self._keys, GROUP, it.delivery.slot.consumer, [it.delivery.id]) for it in tried]
        replies = checked((yield [one.renew() for one in held]))
        lost = {lease for lease, (refused, _) in zip(tried, replies, strict=True) if refused}
        vanished = {it: one for it, one, (_, gone) in zip(tried, held, replies, strict=True) if gone}
        replies = checked((yield [one.hold(int(self._lease_s * 1000)) for one in vanished.values()]))
        lost |= {lease for lease, refused in zip(vanished, replies, strict=True) if refused}
        self._tried = []  # or the last message would not be freed until the next renewal
        for lease in lost:
            self._lose(lease, "lost the lease to another consumer")
        renewed = [lease for lease in tried if lease not in lost]
        for lease in renewed:
            lease.delivery.expires_at = now + self._lease_s  # from before the command: better too early than too late
        if renewed:
            call_in_thread(self._emit_renewed, renewed)

    def _may_try(self, lease: Lease, now: float) -> bool:
        lease.due_at = now + lease.interval_s
        if now >= lease.longest_until:
            self._lose(lease, "the handler exceeded max_processing_seconds; its lease is no longer renewed")
        elif now >= lease.delivery.expires_at:
            self._lose(lease, "the lease expired before it could be renewed")
        else:
            return True
        return False

    def failed(self, error: Exception) -> None:
        """Handle failed renewals."""
        tried, self._tried = self._tried, []
        if not isinstance(error, PenstockError):
            super().failed(error)
            return
        now = time.monotonic()
        for lease in tried:
            delivery = lease.delivery
            if now >= delivery.expires_at:
                self._lose(lease, f"the lease expired before it could be renewed: {error}")
            else:
                logger.warning("cannot renew the lease of message %s: %s; retrying", delivery.id, error)
                lease.due_at = min(now + lease.interval_s / 4, delivery.expires_at)

    def _emit_renewed(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease in self._leases:
                emit = lease.delivery.consumer.emit
                call_in_loop(lease.scope, partial(emit, EventName.RENEWED, id=lease.delivery.id))

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._thread.changed:
            if lease not in self._leases:
                return  # settled meanwhile
            self._leases.discard(lease)
        call_in_thread(lease.on_lost, reason)
