"""Reliable work queues and data pipelines on Redis Streams.

The names here are async; `penstock.sync` has the same names for plain functions and threads.
"""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.first_use import importer

if TYPE_CHECKING:
    from penstock.config import ConsumerConfig
    from penstock.model import (
        ConsumerInfo,
        ConsumerMetrics,
        DeadLetter,
        Lag,
        PassReport,
        PendingEntry,
        ProducerMetrics,
        StreamMessage,
        StreamStats,
    )
    from penstock.queue.abstract_gateway import AbstractRedisGateway
    from penstock.queue.gateway import RedisGateway
    from penstock.queue.interrupt import (
        BaseGracefulInterruptHandler,
        EventDrivenInterruptHandler,
        GracefulInterruptHandler,
    )
    from penstock.queue.message_queue import RedisMessageQueue
    from penstock.queue.model import ClaimedMessage, QueueStats
    from penstock.redis.client import StreamClient
    from penstock.serializers import JsonSerializer, MsgpackSerializer, PickleSerializer, Serializer
    from penstock.streams.consumer import StreamConsumer
    from penstock.streams.dead_letters import DeadLetters
    from penstock.streams.group import ConsumerGroup
    from penstock.streams.producer import StreamProducer
else:
    # When they are first used: redis-py alone takes a tenth of a second to import, which settings, results and the
    # command line need not spend. The same names as above; a test compares them.
    __getattr__ = importer(
        __name__,
        {
            "penstock.config": ["ConsumerConfig"],
            "penstock.model": [
                "ConsumerInfo",
                "ConsumerMetrics",
                "DeadLetter",
                "Lag",
                "PassReport",
                "PendingEntry",
                "ProducerMetrics",
                "StreamMessage",
                "StreamStats",
            ],
            "penstock.queue.abstract_gateway": ["AbstractRedisGateway"],
            "penstock.queue.gateway": ["RedisGateway"],
            "penstock.queue.interrupt": [
                "BaseGracefulInterruptHandler",
                "EventDrivenInterruptHandler",
                "GracefulInterruptHandler",
            ],
            "penstock.queue.message_queue": ["RedisMessageQueue"],
            "penstock.queue.model": ["ClaimedMessage", "QueueStats"],
            "penstock.redis.client": ["StreamClient"],
            "penstock.serializers": ["JsonSerializer", "MsgpackSerializer", "PickleSerializer", "Serializer"],
            "penstock.streams.consumer": ["StreamConsumer"],
            "penstock.streams.dead_letters": ["DeadLetters"],
            "penstock.streams.group": ["ConsumerGroup"],
            "penstock.streams.producer": ["StreamProducer"],
        },
    )

__all__ = [
    "AbstractRedisGateway",
    "BaseGracefulInterruptHandler",
    "ClaimedMessage",
    "ConsumerConfig",
    "ConsumerGroup",
    "ConsumerInfo",
    "ConsumerMetrics",
    "DeadLetter",
    "DeadLetters",
    "EventDrivenInterruptHandler",
    "GracefulInterruptHandler",
    "JsonSerializer",
    "Lag",
    "MsgpackSerializer",
    "PassReport",
    "PendingEntry",
    "PenstockError",
    "PickleSerializer",
    "ProducerMetrics",
    "QueueStats",
    "RedisGateway",
    "RedisMessageQueue",
    "Serializer",
    "StreamClient",
    "StreamConsumer",
    "StreamMessage",
    "StreamProducer",
    "StreamStats",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
