"""RedisGateway: the messages of queues in Redis Streams."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any, Literal

from penstock import envelope, ids
from penstock.delivery.encoding import Encoded
from penstock.delivery.outbox import Outbox
from penstock.delivery.publisher import Answer, Duplicate, Publisher, PublishSettings
from penstock.errors import ConfigurationError, PayloadTooLarge, PenstockError, QueueFull, StreamFull
from penstock.events import EventName, EventSink
from penstock.keys import QueueKeys, check_dead_letters
from penstock.number_checks import check_seconds
from penstock.policy import Limits, Reason
from penstock.queue.abstract_gateway import AbstractRedisGateway, StopRenewal
from penstock.queue.announcer import Announcer
from penstock.queue.claim import Claim
from penstock.queue.dropping import drop_unread
from penstock.queue.gateway_options import Overload, check_interrupt, check_leases, check_overload
from penstock.queue.interrupt import BaseGracefulInterruptHandler
from penstock.queue.lease_keeper import Lease, LeaseKeeper
from penstock.queue.log_record import log_record
from penstock.queue.model import ClaimedMessage
from penstock.queue.options import check_sink
from penstock.queue.payload import TEXT_TYPE, MessageData, encode_text
from penstock.queue.queue_consumer import GROUP, QueueConsumer
from penstock.queue.queue_consumer_settings import QueueConsumerSettings
from penstock.redis.client import StreamClient
from penstock.redis.from_driver import client_of, decodes, is_cluster
from penstock.redis.retry import OPERATION_TTL_S, Repeat, RetryBudget
from penstock.runtime.aio import call_in_loop, home
from penstock.serializers import DEFAULT_MAX_BYTES, PayloadLimits

logger = logging.getLogger("penstock.queue")


class RedisGateway(AbstractRedisGateway):
    """Keeps messages in streams, on the same scripts and recovery as the consumers of `penstock.streams`.

    Every call may be repeated after a connection broke: a message is added once, a claim whose reply got lost is handed
    out by the next call, and a message is settled once. `redis_client` is a client of redis-py or a StreamClient.
    """

    def __init__(
        self,
        *,
        redis_client: Any,
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
        self._given = redis_client  # kept: when nobody has it any more, our client of it is given up
        self._is_text = decodes(redis_client)
        self.is_redis_cluster = is_cluster(redis_client)
        check_sink(on_event)
        check_seconds("retry_budget_seconds", retry_budget_seconds, may_be_zero=True)
        check_seconds("retry_max_delay_seconds", retry_max_delay_seconds)
        check_seconds("retry_initial_delay_seconds", retry_initial_delay_seconds)
        check_seconds("message_deduplication_log_ttl_seconds", message_deduplication_log_ttl_seconds)
        check_seconds("message_wait_interval_seconds", message_wait_interval_seconds, may_be_zero=True)
        if retry_initial_delay_seconds > retry_max_delay_seconds:
            raise ConfigurationError(
                f"retry_initial_delay_seconds={retry_initial_delay_seconds} must not exceed "
                f"retry_max_delay_seconds={retry_max_delay_seconds}"
            )
        check_leases(message_visibility_timeout_seconds, max_delivery_count, dead_letter_queue)
        check_overload(max_pending_length, pending_overload_policy, pending_block_timeout_seconds)
        self.message_visibility_timeout_seconds = message_visibility_timeout_seconds
        self.is_at_most_once = message_visibility_timeout_seconds is None
        self.max_delivery_count, self.dead_letter_queue = max_delivery_count, dead_letter_queue
        self.message_wait_interval_seconds = message_wait_interval_seconds
        self._interrupt = check_interrupt(interrupt)
        self._payload = PayloadLimits(max_payload_bytes)
        self._window_ms = max(1, round(message_deduplication_log_ttl_seconds * 1000))
        self._retry = RetryBudget(
            retry_budget_seconds, retry_initial_delay_seconds, retry_max_delay_seconds, True,
            self.is_interrupted, self._trying_again,
        )  # fmt: skip
        policy: Literal["block", "reject"] = "block" if pending_overload_policy == "block" else "reject"
        self._publishing = PublishSettings(
            max_pending_length or 0, policy, "fast", 1, 1, self._retry, pending_block_timeout_seconds
        )
        self._max_pending, self._overload = max_pending_length, pending_overload_policy
        self._announcer = Announcer(on_event)
        self._emit = self._announcer.tell
        self._new_id = ids.MessageIds().make
        self._outboxes: dict[str, Outbox] = {}
        self._consumers: dict[str, QueueConsumer] = {}
        self._keepers: dict[str, LeaseKeeper] = {}
        self._claims: dict[str, tuple[QueueConsumer, Claim]] = {}
        self._stopped: Callable[[], bool] = lambda: False

    def stop_when(self, is_stopped: Callable[[], bool]) -> None:
        """Have waits and retries end when the function says so: a queue that is drained."""
        self._stopped = is_stopped

    def listen(self, queue: str, sink: EventSink) -> None:
        """Tell a sink, too, what happens to the messages of a queue."""
        self._announcer.listen(queue, sink)

    def is_interrupted(self) -> bool:
        """Return whether nothing new should be begun."""
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
        self._payload.check_size(len(raw), PayloadTooLarge)
        if protection is not None:
            raw = protection.protect(raw, self._client.keys(queue).stream, message_id)
        return Encoded(raw, message_id, more, dedup_key, window_ms)

    async def _post(self, queue: str, message: Encoded) -> str:
        while True:
            outbox = self._outbox(queue)
            if outbox.is_full():
                await outbox.wait_for_room()
            promise = outbox.post(message)
            answer = await promise  # sync: answer = promise.result()
            if isinstance(answer, str):
                return answer
            if not isinstance(answer, StreamFull) or self._max_pending is None:
                raise answer
            if self._overload != "drop_oldest":
                self._emit(queue, EventName.REJECTED, count=1)
                raise QueueFull(
                    f"queue {queue!r} holds max_pending_length={self._max_pending} messages; add consumers, raise "
                    f"max_pending_length, or choose pending_overload_policy='block' or 'drop_oldest'"
                ) from answer
            dropped = await drop_unread(self._client, queue, 1, self._max_pending)
            if dropped is None:
                # All that is there is in flight: nothing may be dropped, and this message is not lost by waiting.
                raise QueueFull(
                    f"queue {queue!r} holds max_pending_length={self._max_pending} messages, and all of them are being "
                    f"processed: there is none to drop; raise max_pending_length"
                ) from answer
            if dropped:  # else another producer made room, which may still be there
                self._emit(queue, EventName.DROPPED, count=len(dropped), ids=dropped)

    def _outbox(self, queue: str) -> Outbox:
        outbox = self._outboxes.get(queue)
        if outbox is None:
            self._check_slot(queue)
            publisher = Publisher(self._client, queue, self._publishing, lambda _count: None)
            is_simple = self._publishing.on_full != "block"
            outbox = self._outboxes.setdefault(queue, Outbox(publisher, _ignore, 0.0, 500, 10_000, is_simple))
        return outbox

    # --- taking -------------------------------------------------------------------------------------

    async def wait_for_message_and_move(
        self, from_queue: str, to_queue: str, *, is_stopped: Callable[[], bool] | None = None
    ) -> ClaimedMessage | None:
        """Take the next message, blocking on the server for up to `message_wait_interval_seconds`.

        The wait ends soon after `is_stopped` says so, in place of is_interrupted(); nothing new is taken from then on.
        """
        consumer = self._consumer_of(from_queue)
        claim = await consumer.claim(self.message_wait_interval_seconds, is_stopped or self.is_interrupted)
        if claim is None:
            self._emit(from_queue, EventName.EMPTY)
            return None
        token = claim.token
        self._claims[token] = consumer, claim
        return ClaimedMessage(claim.payload, token, claim.entry_id, claim.deliveries, claim.attempts)

    def _consumer_of(self, queue: str) -> QueueConsumer:
        consumer = self._consumers.get(queue)
        if consumer is None:
            self._check_slot(queue)
            check_dead_letters(queue, self.dead_letter_queue or "", "dead_letter_queue", is_cluster=False)
            lease_s = self.message_visibility_timeout_seconds
            # At most once is one attempt; a limit of attempts, for deliveries count hand-backs too.
            most = 1 if lease_s is None else self.max_delivery_count
            dead_letters = self.dead_letter_queue or QueueKeys(queue).dead_letter
            settings = QueueConsumerSettings(
                lease_s=lease_s,
                limits=Limits(None, most),
                dead_letters=self._client.keys(dead_letters).stream,
                is_text=self._is_text,
                retry=self._retry,
                can_be_interrupted=self._interrupt is not None,
                payload=self._payload,
            )
            made = QueueConsumer(
                self._client, queue, settings, lambda name, **fields: self._emit(queue, name, **fields)
            )
            consumer = self._consumers.setdefault(queue, made)
        return consumer

    def _check_slot(self, queue: str) -> None:
        if self.is_redis_cluster:
            QueueKeys(queue).check_one_slot(self.dead_letter_queue)

    # --- settling -----------------------------------------------------------------------------------

    async def remove_message(self, queue: str, message: MessageData, *, lease_token: str | None = None) -> bool:
        """Remove a message that was taken; False if it belongs to somebody else by now."""
        found = self._claims.pop(lease_token or "", None)
        return found is not None and await found[0].finish(found[1])

    async def discard_message(
        self, queue: str, message: MessageData, *, lease_token: str | None = None, error: BaseException | None = None
    ) -> bool:
        """Remove a message whose handler failed and which is not tried again; its deduplication key is free again."""
        found = self._claims.pop(lease_token or "", None)
        return found is not None and await found[0].finish(found[1], came_to_nothing=True)

    async def remove_quickly(
        self, lease_token: str, is_stopped: Callable[[], bool]
    ) -> tuple[bool, BaseException | None]:
        """Remove a message that was taken, in the shortest way; False = nothing is known yet, ask remove_message().

        Unless `is_stopped` says that there will be no next one, that may be taken along.
        """
        found = self._claims.get(lease_token)
        if found is None:
            return False, None
        is_done, cancelled = await found[0].finish_quickly(found[1], is_stopped)
        if is_done:
            del self._claims[lease_token]
        return is_done, cancelled

    async def move_message(
        self, from_queue: str, to_queue: str, message: MessageData, *, lease_token: str | None = None
    ) -> bool:
        """Move a message that was taken to a log; False if it belongs to somebody else by now."""
        return await self.log_message(from_queue, to_queue, message, lease_token=lease_token)

    async def log_message(
        self,
        from_queue: str,
        to_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        max_length: int | None = None,
        error: BaseException | None = None,
    ) -> bool:
        """Move a message that was taken to a log and keep only the newest records of that, in one step."""
        found = self._claims.pop(lease_token or "", None)
        if found is None:
            return False
        consumer, claim = found
        log = self._client.keys(to_queue).stream
        # What failed and is not tried again exists nowhere else: without its record it must stay.
        has_failed = error is not None
        return await consumer.finish(
            claim, log, log_record(claim, error), max_length or 0, must_log=has_failed, came_to_nothing=has_failed
        )

    async def note_failure(
        self, to_queue: str, claimed: ClaimedMessage, error: BaseException, max_length: int | None
    ) -> None:
        """Record in a log that an attempt failed, whatever becomes of the message; best effort."""
        found = self._claims.get(claimed.lease_token)
        if found is None:
            return
        consumer, claim = found
        log = self._client.keys(to_queue).stream
        most = ("MAXLEN", max_length) if max_length else ()
        keys = [log, consumer.keys.operation(secrets.token_hex(8))]
        args = [OPERATION_TTL_S, "XADD", *most, "*", *claim.fields, *log_record(claim, error)]
        try:
            await self._client.run("queue/once", keys, args, Repeat.IDEMPOTENT)
        except PenstockError as refusal:
            logger.warning("%s failed, but %s refused its record: %s", claim.entry_id, log, refusal)
            self._emit(consumer.keys.stream, EventName.UNLOGGED, id=claim.entry_id, log=log)

    async def return_message(
        self,
        from_queue: str,
        to_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        delay_seconds: float = 0.0,
        counts: bool = True,
    ) -> bool:
        """Have a message that was taken handed out again after the delay."""
        found = self._claims.pop(lease_token or "", None)
        return found is not None and await found[0].park(found[1], delay_seconds, counts=counts)

    async def dead_letter_message(
        self,
        from_queue: str,
        message: MessageData,
        *,
        lease_token: str | None = None,
        reason: Reason = Reason.MAX_DELIVERIES,
        error: BaseException | None = None,
    ) -> bool:
        """Move a message that was taken to the dead letters, with all that is known of it."""
        found = self._claims.pop(lease_token or "", None)
        return found is not None and await found[0].dead_letter(found[1], reason, error)

    # --- leases -------------------------------------------------------------------------------------

    async def renew_message_lease(self, queue: str, message: MessageData, lease_token: str) -> bool:
        """Begin the lease anew; False if the message belongs to somebody else by now."""
        found = self._claims.get(lease_token)
        return found is not None and await found[0].renew(found[1])

    async def keep_lease(
        self,
        queue: str,
        claimed: ClaimedMessage,
        interval_seconds: float,
        max_seconds: float,
        on_lost: Callable[[str], None],
    ) -> StopRenewal:
        """Renew a lease every interval from a thread, whatever the handler does to its event loop."""
        consumer, claim = self._claims[claimed.lease_token]
        here = home()
        keeper = self._keeper(consumer)
        lease = Lease(
            claim.slot.consumer,
            claim.entry_id,
            interval_seconds,
            claim.expires_at,
            claim.expires_at - (self.message_visibility_timeout_seconds or 0.0) + max_seconds,
            lambda: call_in_loop(here, lambda: self._emit(consumer.keys.stream, EventName.RENEWED, id=claim.entry_id)),
            on_lost,
        )
        keeper.keep(lease)

        async def stop() -> None:
            keeper.leave(lease)

        return stop

    def _keeper(self, consumer: QueueConsumer) -> LeaseKeeper:
        stream = consumer.keys.stream
        keeper = self._keepers.get(stream)
        if keeper is None or keeper.is_foreign:
            lease_s = self.message_visibility_timeout_seconds or 1.0
            keeper = self._keepers[stream] = LeaseKeeper(self._client.settings, consumer.keys, GROUP, lease_s)
        return keeper

    # --- the rest -----------------------------------------------------------------------------------

    async def trim_queue(self, queue: str, max_length: int) -> None:
        """Keep only the newest records of a log."""
        log = self._client.keys(queue).stream
        await self._client.call(log, "XTRIM", log, "MAXLEN", max_length, repeat=Repeat.IDEMPOTENT)

    @property
    def client(self) -> StreamClient:
        """The way to Redis."""
        return self._client

    @property
    def is_text(self) -> bool:
        """Whether payloads are handed out as texts, and not as bytes."""
        return self._is_text

    async def hand_back(self) -> bool:
        """Settle what could not be settled, and put back what nobody holds; False = Redis is out of reach."""
        answers = [await consumer.hand_back() for consumer in list(self._consumers.values())]
        return all(answers)

    async def close(self) -> None:
        """Hand back what is in doubt and give up the connections; the client stays open."""
        await self.hand_back()
        for keeper in list(self._keepers.values()):
            keeper.close()
        self._keepers.clear()
        for consumer in list(self._consumers.values()):
            consumer.close()
        for outbox in list(self._outboxes.values()):
            await outbox.close()

    def _trying_again(self, error: PenstockError, pause_s: float) -> None:
        logger.warning("%s; trying again in %.2f s", error, pause_s)
        self._emit("", EventName.TRYING_AGAIN, error=repr(error), pause_s=pause_s)


def _ignore(_answers: list[Answer]) -> None:
    pass
