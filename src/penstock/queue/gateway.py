"""RedisGateway: the messages of queues in Redis Streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

from penstock import envelope, ids
from penstock.delivery.encoding import Encoded
from penstock.delivery.publisher import Duplicate, Publisher, PublishSettings
from penstock.errors import PayloadTooLarge, PenstockError, QueueFull, StreamFull
from penstock.events import Event, EventName, EventSink, notify
from penstock.keys import QueueKeys, check_dead_letters
from penstock.number_checks import check_seconds
from penstock.policy import AttemptLimits, Reason
from penstock.queue.abstract_gateway import AbstractRedisGateway, Delivery, GatewayDelivery, StopRenewal
from penstock.queue.administration import Administration, drop_unread
from penstock.queue.interrupt import BaseGracefulInterruptHandler
from penstock.queue.model import GROUP, TEXT_TYPE, ClaimedMessage, MessageData, encode_text
from penstock.queue.options import (
    Overload,
    check_dead_letter_queue,
    check_interrupt,
    check_leases,
    check_overload,
    check_retries,
    check_sink,
)
from penstock.queue.queue_consumer import QueueConsumer, QueueConsumerSettings
from penstock.queue.queue_delivery import QueueDelivery
from penstock.redis.client import StreamClient
from penstock.redis.driver_kinds import DriverClient
from penstock.redis.from_driver import client_of, decodes, is_cluster
from penstock.redis.retry import Repeat, RetryBudget
from penstock.serializers import DEFAULT_MAX_BYTES, PayloadLimits

logger = logging.getLogger("penstock.queue")


class RedisGateway(AbstractRedisGateway):
    """Stores messages in streams, with the same scripts and recovery as the consumers of `penstock.streams`.

    Every call may be repeated after a connection failure: a message is added once, the next call returns a claimed
    message whose reply was lost, and a message is settled once. `redis_client` is a redis-py client or a StreamClient.
    """

    def __init__(
        self,
        *,
        redis_client: StreamClient | DriverClient,
        retry_budget_seconds: float = 120,
        retry_max_delay_seconds: float = 5.0,
        retry_initial_delay_seconds: float = 0.01,
        message_deduplication_log_ttl_seconds: float = 3600,
        message_wait_interval_seconds: float = 5,
        message_visibility_timeout_seconds: float | None = None,
        max_delivery_count: int | None = None,
        dead_letter_queue: str | None = None,
        interrupt: BaseGracefulInterruptHandler | None = None,
        max_pending_length: int | None = None,
        pending_overload_policy: Overload = "raise",
        pending_block_timeout_seconds: float = 30.0,
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        on_event: EventSink | None = None,
    ) -> None:
        self._client: StreamClient = client_of(redis_client, "redis_client")
        self._given = redis_client  # kept, because our StreamClient is dropped when it is garbage-collected
        self.is_redis_cluster = is_cluster(redis_client)
        check_sink(on_event)
        check_retries(retry_budget_seconds, retry_initial_delay_seconds, retry_max_delay_seconds)
        check_seconds("message_deduplication_log_ttl_seconds", message_deduplication_log_ttl_seconds)
        check_seconds("message_wait_interval_seconds", message_wait_interval_seconds, may_be_zero=True)
        check_leases("message_visibility_timeout_seconds", message_visibility_timeout_seconds, max_delivery_count)
        check_dead_letter_queue(dead_letter_queue, max_delivery_count)
        check_overload(max_pending_length, pending_overload_policy, pending_block_timeout_seconds)
        self.message_visibility_timeout_seconds = message_visibility_timeout_seconds
        self.is_at_most_once = message_visibility_timeout_seconds is None
        self.max_delivery_count, self.dead_letter_queue = max_delivery_count, dead_letter_queue
        self.message_wait_interval_seconds = message_wait_interval_seconds
        self._interrupt = check_interrupt(interrupt)
        self._window_ms = max(1, round(message_deduplication_log_ttl_seconds * 1000))
        self._retry = RetryBudget(
            retry_budget_seconds, retry_initial_delay_seconds, retry_max_delay_seconds, True,
            self.is_interrupted, self._trying_again,
        )  # fmt: skip
        # At most once means one attempt. Limit attempts, because deliveries include hand-backs.
        limits = AttemptLimits(None, 1 if self.is_at_most_once else max_delivery_count)
        self._settings = QueueConsumerSettings(
            message_visibility_timeout_seconds, limits, decodes(redis_client), self._retry, interrupt is not None,
            PayloadLimits(max_payload_bytes),
        )  # fmt: skip
        policy: Literal["block", "reject"] = "block" if pending_overload_policy == "block" else "reject"
        self._publishing = PublishSettings(
            max_pending_length or 0, policy, "fast", 1, 1, self._retry, pending_block_timeout_seconds
        )
        self._max_pending, self._overload = max_pending_length, pending_overload_policy
        self._on_event, self._listeners = on_event, dict[str, list[EventSink]]()
        self._new_id = ids.MessageIds().make
        self._publishers: dict[str, Publisher] = {}
        self._consumers: dict[str, QueueConsumer] = {}
        self._held: dict[str, QueueDelivery] = {}  # by token
        self._stopped: Callable[[], bool] = lambda: False

    def stop_when(self, is_stopped: Callable[[], bool]) -> None:
        """End waits and retries once the function returns True, such as for a queue that is drained."""
        self._stopped = is_stopped

    def listen(self, queue: str, sink: EventSink) -> None:
        """Also send the events of a queue's messages to a sink."""
        listeners = self._listeners.setdefault(queue, [])
        if sink != self._on_event and sink not in listeners:
            listeners.append(sink)

    def _emit(self, queue: str, name: EventName, **fields: object) -> None:
        if self._on_event is not None:
            notify(self._on_event, Event(name, queue, GROUP, fields))
        if not self._listeners:
            return  # which is to cost nothing
        # Events of the connection concern all queues.
        for concerned in [queue] if queue else list(self._listeners):
            for sink in self._listeners.get(concerned, ()):
                notify(sink, Event(name, concerned, GROUP, fields))

    def is_interrupted(self) -> bool:
        """Return whether to stop taking messages."""
        return self._stopped() or (self._interrupt is not None and self._interrupt.is_interrupted())

    # --- publishing ---------------------------------------------------------------------------------

    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        """Add a message unless one was published under the key within the window; return whether it was added."""
        more = (envelope.CONTENT_TYPE, TEXT_TYPE, envelope.DEDUP_KEY, dedup_key)
        answer = await self._post(queue, self._outgoing(queue, message, more, dedup_key, self._window_ms))
        is_new = not isinstance(answer, Duplicate)
        self._emit(queue, EventName.PUBLISHED if is_new else EventName.DUPLICATE, id=str(answer))
        return is_new

    async def add_message(self, queue: str, message: str) -> None:
        """Add a message."""
        more = (envelope.CONTENT_TYPE, TEXT_TYPE)
        answer = await self._post(queue, self._outgoing(queue, message, more))
        self._emit(queue, EventName.PUBLISHED, id=answer)

    def _outgoing(
        self, queue: str, message: str, more: tuple[str, ...], dedup_key: str | None = None, window_ms: int = 0
    ) -> Encoded:
        raw, message_id, protection = encode_text(message), self._new_id(), self._client.protection
        self._settings.payload.check_size(len(raw), PayloadTooLarge)
        if protection is not None:
            raw = protection.protect(raw, self._client.keys(queue).stream, message_id)
        return Encoded(raw, message_id, more, dedup_key, window_ms)

    async def _post(self, queue: str, message: Encoded) -> str:
        while True:
            publisher = self._publisher(queue)
            if publisher.is_full():
                await publisher.wait_for_room()
            promise = publisher.post(message)
            answer = await promise  # sync: answer = promise.result()
            if isinstance(answer, str):
                return answer
            if not isinstance(answer, StreamFull) or self._max_pending is None:
                raise answer
            if self._overload != "drop_oldest":
                self._emit(queue, EventName.REJECTED, count=1)
                raise QueueFull(
                    f"queue {queue!r} has reached max_pending_length={self._max_pending}; add consumers, raise "
                    "max_pending_length, or set pending_overload_policy='block' or 'drop_oldest'"
                ) from answer
            dropped = await drop_unread(self._client, queue, 1, self._max_pending)
            if dropped is None:
                # All messages are in flight, and must not be dropped; this message is not lost if its producer waits.
                raise QueueFull(
                    f"queue {queue!r} has reached max_pending_length={self._max_pending}, and drop_oldest "
                    "cannot drop any message because all of them are being processed; raise max_pending_length"
                ) from answer
            if dropped:  # else another producer made room, which may still be there
                self._emit(queue, EventName.DROPPED, count=len(dropped), ids=dropped)

    def _publisher(self, queue: str) -> Publisher:
        publisher = self._publishers.get(queue)
        if publisher is None:
            self._check_slot(queue)
            made = Publisher(self._client, queue, self._publishing, _ignore, _ignore)
            publisher = self._publishers.setdefault(queue, made)
        return publisher

    # --- taking -------------------------------------------------------------------------------------

    async def take(self, key: QueueKeys, is_stopped: Callable[[], bool]) -> Delivery | None:
        """Take the next message of a queue; methods that a subclass overrides are called as for any gateway."""
        if type(self) is RedisGateway:
            return await self._claim(key.pending, is_stopped)
        found = await self.wait_for_message_and_move(key.pending, key.processing, is_stopped=is_stopped)
        return None if found is None else GatewayDelivery(self, key, found)

    async def wait_for_message_and_move(
        self, from_queue: str, to_queue: str, *, is_stopped: Callable[[], bool] | None = None
    ) -> ClaimedMessage | None:
        """Take the next message, blocking on the server for up to `message_wait_interval_seconds`.

        The wait ends soon after `is_stopped`, by default is_interrupted(), returns True; then no new message is taken.
        """
        found = await self._claim(from_queue, is_stopped or self.is_interrupted)
        if found is None:
            return None
        return ClaimedMessage(found.payload, found.token, found.id, found.deliveries, found.attempts)

    async def _claim(self, queue: str, is_stopped: Callable[[], bool]) -> QueueDelivery | None:
        found = await self._consumer_of(queue).claim(self.message_wait_interval_seconds, is_stopped)
        if found is None:
            self._emit(queue, EventName.EMPTY)
        return found

    def _consumer_of(self, queue: str) -> QueueConsumer:
        consumer = self._consumers.get(queue)
        if consumer is None:
            self._check_slot(queue)
            check_dead_letters(queue, self.dead_letter_queue or "", "dead_letter_queue", is_cluster=False)
            dead_letters = self._client.keys(self.dead_letter_queue or QueueKeys(queue).dead_letter).stream
            emit = partial(self._emit, queue)
            made = QueueConsumer(self._client, queue, dead_letters, self._settings, emit, self._held)
            consumer = self._consumers.setdefault(queue, made)
        return consumer

    def _check_slot(self, queue: str) -> None:
        if self.is_redis_cluster:
            QueueKeys(queue).check_one_slot(self.dead_letter_queue)

    # --- settling by token --------------------------------------------------------------------------

    async def remove_message(self, queue: str, message: MessageData, *, lease_token: str | None = None) -> bool:
        """Remove a message that was taken; return False if another consumer has it now."""
        held = self._held.get(lease_token or "")
        return held is not None and await held.finish()

    async def discard_message(
        self, queue: str, message: MessageData, *, lease_token: str | None = None, error: BaseException | None = None
    ) -> bool:
        """Remove a message whose handler failed and which is not retried; release its deduplication key."""
        held = self._held.get(lease_token or "")
        return held is not None and await held.discard(error)

    async def move_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None
    ) -> bool:
        """Move a message that was taken to a log; return False if another consumer has it now."""
        return await self.log_message(from_queue, to_queue, message, lease_token=lease_token)

    async def log_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None,
        max_length: int | None = None, error: BaseException | None = None,
    ) -> bool:  # fmt: skip
        """Move a message that was taken to a log, and keep only the newest records of the log, in one step."""
        held = self._held.get(lease_token or "")
        if held is None:
            return False
        if error is None:
            return await held.finish(to_queue, max_length)
        return await held.discard(error, to_queue, max_length)

    async def note_failure(
        self, to_queue: str, claimed: ClaimedMessage, error: BaseException, max_length: int | None
    ) -> None:
        """Record a failed attempt in a log, regardless of what happens to the message; best effort."""
        held = self._held.get(claimed.lease_token)
        if held is not None:
            await held.note_failure(error, to_queue, max_length)

    async def return_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None,
        delay_seconds: float = 0.0, counts: bool = True,
    ) -> bool:  # fmt: skip
        """Return a message that was taken to the queue after the delay."""
        held = self._held.get(lease_token or "")
        return held is not None and await held.retry(delay_seconds, counts=counts)

    async def dead_letter_message(
        self, from_queue: str, message: MessageData, *, lease_token: str | None = None,
        reason: Reason = Reason.MAX_DELIVERIES, error: BaseException | None = None,
    ) -> bool:  # fmt: skip
        """Move a message that was taken to the dead letters, with everything known about it."""
        held = self._held.get(lease_token or "")
        return held is not None and await held.dead_letter(reason, error)

    async def renew_message_lease(self, queue: str, message: MessageData, lease_token: str) -> bool:
        """Renew the lease; return False if another consumer has the message now."""
        held = self._held.get(lease_token)
        return held is not None and await held.renew()

    async def keep_lease(
        self, queue: str, claimed: ClaimedMessage, interval_seconds: float, max_seconds: float,
        on_lost: Callable[[str], None],
    ) -> StopRenewal:  # fmt: skip
        """Renew a lease every interval from a thread, so that a handler that blocks its event loop keeps it."""
        return await self._held[claimed.lease_token].keep_lease(interval_seconds, max_seconds, on_lost)

    # --- the rest -----------------------------------------------------------------------------------

    async def trim_queue(self, queue: str, max_length: int) -> None:
        """Keep only the newest records of a log."""
        log = self._client.keys(queue).stream
        await self._client.call(log, "XTRIM", log, "MAXLEN", max_length, repeat=Repeat.IDEMPOTENT)

    def administration(self, key: QueueKeys) -> Administration:
        """Return the administration of a queue."""
        return Administration(self._client, key, self.dead_letter_queue, self._settings.is_text)

    async def hand_back(self) -> bool:
        """Settle and return what could not be before; return False if Redis cannot be reached."""
        answers = [await consumer.hand_back() for consumer in list(self._consumers.values())]
        return all(answers)

    async def close(self) -> None:
        """Return messages of uncertain state and close the connections; the client stays open."""
        await self.hand_back()
        for consumer in list(self._consumers.values()):
            consumer.close()
        for publisher in list(self._publishers.values()):
            await publisher.close()

    def _trying_again(self, error: PenstockError, pause_s: float) -> None:
        logger.warning("%s; retrying in %.2f s", error, pause_s)
        self._emit("", EventName.TRYING_AGAIN, error=repr(error), pause_s=pause_s)


def _ignore(_: object) -> None:
    pass
