"""StreamProducer: publishes messages to a stream, each once."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, get_args

from penstock.counters import RateTracker
from penstock.delivery.encoding import Encoder
from penstock.delivery.group import ConsumerGroup
from penstock.delivery.publisher import Answer, Duplicate, Durability, OnFull, Publisher, PublishSettings
from penstock.errors import ConfigurationError, NotDurable, PenstockError, PublishUnknown, StreamFull
from penstock.events import Emitter, EventName, EventSink
from penstock.keys import check_name
from penstock.model import ProducerMetrics
from penstock.number_checks import check_number
from penstock.redis.client import StreamClient, check_client
from penstock.redis.retry import RetryBudget
from penstock.serializers import Serializer
from penstock.type_checks import check_list


class StreamProducer:
    """Publishes messages to one stream.

    Concurrent calls of push() are sent together. After a lost reply, the producer sends again within `retry_budget_ms`,
    and adds nothing twice.
    """

    _instances: ClassVar[weakref.WeakSet[StreamProducer]] = weakref.WeakSet()

    def __init__(
        self,
        client: StreamClient,
        stream: str,
        group: str | None = None,
        max_len: int | None = 100_000,
        serializer: Serializer | None = None,
        *,
        on_full: OnFull = "reject",
        durability: Durability = "fast",
        replicas: int = 1,
        durability_timeout_ms: int = 2_000,
        linger_ms: float = 0,
        max_batch: int = 500,
        max_buffered: int = 10_000,
        retry_budget_ms: int = 30_000,
        block_timeout_ms: int = 30_000,
        on_event: EventSink | None = None,
    ) -> None:
        check_client(client)
        if on_full not in get_args(OnFull):
            raise ConfigurationError(f"on_full={on_full!r} must be one of {', '.join(get_args(OnFull))}")
        if durability not in get_args(Durability):
            raise ConfigurationError(f"durability={durability!r} must be one of {', '.join(get_args(Durability))}")
        if max_len is not None:
            check_number("max_len", max_len)
        sizes = {"replicas": replicas, "max_batch": max_batch, "max_buffered": max_buffered}
        times = {
            "durability_timeout_ms": durability_timeout_ms,
            "retry_budget_ms": retry_budget_ms,
            "block_timeout_ms": block_timeout_ms,
        }
        for name, value in (sizes | times).items():
            check_number(name, value)
        check_number("linger_ms", linger_ms, is_whole=False, may_be_zero=True)
        self.client = client
        self.stream = stream
        self.group = check_name("group", group) if group is not None else None
        self._encoder = Encoder(serializer, client.keys(stream).stream, client.protection)
        retry = RetryBudget(retry_budget_ms / 1000)
        settings = PublishSettings(
            max_len or 0, on_full, durability, replicas, durability_timeout_ms, retry, block_timeout_ms / 1000,
            linger_ms / 1000, max_batch, max_buffered,
        )  # fmt: skip
        self._publisher = Publisher(client, stream, settings, self._count, self._count_dropped)
        self._emit = Emitter(on_event, stream, group or "")
        self._total = self._duplicates = self._dropped = self._rejected = 0
        self._rate = RateTracker()
        self._first_push: float | None = None
        StreamProducer._instances.add(self)

    async def push(
        self,
        data: Any,
        *,
        message_id: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_key: str | None = None,
        dedup_window_ms: float = 3_600_000,
        expires_in_ms: float | None = None,
    ) -> str:
        """Add one message and return its id; with a `dedup_key` seen within its window, the id of the earlier one.

        Raises: StreamFull, PublishUnknown, NotDurable, EncodeError, or an error of Redis.
        """
        if message_id is None and key is None and headers is None and dedup_key is None and expires_in_ms is None:
            message = self._encoder.plain(data)
        else:
            message = self._encoder.full(data, message_id, key, headers, dedup_key, dedup_window_ms, expires_in_ms)
        publisher = self._publisher
        if publisher.is_full():
            await publisher.wait_for_room()
        promise = publisher.post(message)
        answer = await promise  # sync: answer = promise.result()
        if isinstance(answer, str):
            return answer
        raise self._refused(answer)

    async def push_many(self, items: Iterable[Any]) -> list[str]:
        """Add messages in order and return their ids.

        Raises: the error of the first message that was not accepted; `ids` of a StreamFull or PublishUnknown are the
        accepted ones.
        """
        check_list("items", items, "push() takes a single message")
        # Encode all before sending any, so that one that cannot be encoded leaves the stream unchanged.
        messages = self._encoder.plain_many(items)
        if not messages:
            return []
        if self._publisher.is_full():
            await self._publisher.wait_for_room()
        promise = self._publisher.post_many(messages)
        answers = await promise  # sync: answers = promise.result()
        accepted = [answer for answer in answers if isinstance(answer, str)]
        if len(accepted) < len(answers):
            raise self._refused(next(answer for answer in answers if not isinstance(answer, str)), answers)
        return accepted

    async def ensure_group(self, group: str | None = None) -> None:
        """Create the consumer group at the beginning of the stream unless it exists."""
        name = group or self.group
        if name is None:
            raise ConfigurationError("no group name: pass one to ensure_group() or to StreamProducer(group=...)")
        await ConsumerGroup(self.client, self.stream, name).ensure()

    async def close(self) -> None:
        """Wait for pending messages to be published; the client stays open."""
        await self._publisher.close()

    def _count(self, answers: list[Answer]) -> None:
        # Once per batch: for each message, it would add a tenth to the cost of publishing.
        if self._first_push is None:
            self._first_push = time.monotonic()
        unusual = [answer for answer in answers if type(answer) is not str]
        duplicates = refused = 0
        if unusual:
            duplicates = len([answer for answer in unusual if isinstance(answer, Duplicate)])
            # NotDurable is not a refusal: the entry is in the stream.
            refused = len(unusual) - duplicates - len([answer for answer in unusual if isinstance(answer, NotDurable)])
        added = len(answers) - duplicates - refused
        self._total += added
        self._rate.record(added)
        if duplicates:
            self._duplicates += duplicates
            self._emit(EventName.DUPLICATE, count=duplicates)
        if refused:
            self._rejected += refused
            self._emit(EventName.REJECTED, count=refused)

    def _count_dropped(self, count: int) -> None:
        self._dropped += count
        self._emit(EventName.DROPPED, count=count)

    @staticmethod
    def _refused(error: Answer, answers: Sequence[Answer] = ()) -> PenstockError:
        assert isinstance(error, PenstockError)
        if isinstance(error, StreamFull | PublishUnknown):
            error.ids = tuple(answer for answer in answers if isinstance(answer, str))
        elif isinstance(error, NotDurable) and answers:
            error.ids = tuple(
                entry_id for answer in answers if isinstance(answer, NotDurable) for entry_id in answer.ids
            )
        if isinstance(error, PublishUnknown) and answers:
            error.message_ids = tuple(
                message_id
                for answer in answers
                if isinstance(answer, PublishUnknown)
                for message_id in answer.message_ids
            )
        return error

    def metrics(self) -> ProducerMetrics:
        """Return the counters of this producer, without a call to Redis."""
        uptime = 0.0 if self._first_push is None else time.monotonic() - self._first_push
        return ProducerMetrics(
            total_pushed=self._total,
            tps=round(self._rate.rate(), 2),
            avg_tps=round(self._total / uptime, 2) if uptime >= 1 else 0.0,
            uptime_secs=round(uptime, 1),
            total_duplicates=self._duplicates,
            total_dropped=self._dropped,
            total_rejected=self._rejected,
        )

    @classmethod
    def all_metrics(cls) -> list[ProducerMetrics]:
        """Return the counters of every open producer of this process."""
        return [producer.metrics() for producer in list(cls._instances)]
