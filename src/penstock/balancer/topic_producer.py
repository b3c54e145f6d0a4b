"""TopicProducer: publishes messages to the shards of a topic, by their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.balancer.messages import Topic
from penstock.errors import ConfigurationError
from penstock.keys import is_utf8
from penstock.redis.client import StreamClient, check_client
from penstock.serializers import Serializer
from penstock.streams.producer import StreamProducer
from penstock.type_checks import check_type


class TopicProducer:
    """Publishes to a topic.

    Guarantees: messages with the same key are in one shard, in the order in which push() was awaited.
    """

    def __init__(self, client: StreamClient, topic: Topic, serializer: Serializer | None = None) -> None:
        check_client(client)
        check_type("topic", topic, Topic, "Topic('orders', shards=8)")
        self._client, self.topic, self._serializer = client, topic, serializer
        self._producers: dict[int, StreamProducer] = {}
        self._is_checked = False

    async def push(self, payload: Any, *, key: str, headers: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Publish a message to the shard of its key; return the stream of the shard and the id of the entry."""
        if not is_utf8(key) or not key:
            raise ConfigurationError(f"key={key!r} must be a non-empty string: it determines the shard")
        await self._check()
        shard = self.topic.shard_of(key)
        producer = self._producers.get(shard)
        if producer is None:
            producer = self._producers.setdefault(
                shard, StreamProducer(self._client, self.topic.stream(shard), serializer=self._serializer)
            )
        entry_id = await producer.push(payload, key=key, headers=headers)
        return self.topic.stream(shard), entry_id

    async def _check(self) -> None:
        if not self._is_checked:
            self.topic.check_prefix(self._client.prefix)
            shards = self.topic.keys.shards
            known = int(await self._client.call(shards, "HLEN", shards))
            if known:
                self.topic.check_known(known)
            self._is_checked = True
