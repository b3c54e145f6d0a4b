"""Reliable work queues and data pipelines on Redis Streams.

The names here are async; `penstock.sync` has the same names for plain functions and threads.
"""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.first_use import importer
from penstock.logs import install as _install_logs

_install_logs()

if TYPE_CHECKING:
    from penstock.balancer.balancer import StreamBalancer
    from penstock.balancer.config import RetryConfig
    from penstock.balancer.holdings import Ownership
    from penstock.balancer.messages import LBSInfo, LBSInputMessage
    from penstock.balancer.notices import StreamAdded, StreamDisowned, StreamExpired, StreamTerminated
    from penstock.balancer.owned_stream import OwnedStream
    from penstock.balancer.topic import Topic
    from penstock.balancer.topic_producer import TopicProducer
    from penstock.config import ConsumerConfig
    from penstock.dead_letter_limits import DeadLetterLimits
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
    from penstock.protection import Protection
    from penstock.queue.abstract_gateway import AbstractRedisGateway
    from penstock.queue.gateway import RedisGateway
    from penstock.queue.importer import import_queue
    from penstock.queue.interrupt import (
        BaseGracefulInterruptHandler,
        EventDrivenInterruptHandler,
        GracefulInterruptHandler,
    )
    from penstock.queue.message_queue import RedisMessageQueue
    from penstock.queue.model import ClaimedMessage, ImportReport, QueueStats
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
            "penstock.balancer.balancer": ["StreamBalancer"],
            "penstock.balancer.config": ["RetryConfig"],
            "penstock.balancer.holdings": ["Ownership"],
            "penstock.balancer.messages": ["LBSInfo", "LBSInputMessage"],
            "penstock.balancer.notices": ["StreamAdded", "StreamDisowned", "StreamExpired", "StreamTerminated"],
            "penstock.balancer.owned_stream": ["OwnedStream"],
            "penstock.balancer.topic": ["Topic"],
            "penstock.balancer.topic_producer": ["TopicProducer"],
            "penstock.config": ["ConsumerConfig"],
            "penstock.dead_letter_limits": ["DeadLetterLimits"],
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
            "penstock.queue.importer": ["import_queue"],
            "penstock.queue.interrupt": [
                "BaseGracefulInterruptHandler",
                "EventDrivenInterruptHandler",
                "GracefulInterruptHandler",
            ],
            "penstock.queue.message_queue": ["RedisMessageQueue"],
            "penstock.queue.model": ["ClaimedMessage", "ImportReport", "QueueStats"],
            "penstock.redis.client": ["StreamClient"],
            "penstock.protection": ["Protection"],
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
    "DeadLetterLimits",
    "DeadLetters",
    "EventDrivenInterruptHandler",
    "GracefulInterruptHandler",
    "ImportReport",
    "JsonSerializer",
    "LBSInfo",
    "LBSInputMessage",
    "Lag",
    "MsgpackSerializer",
    "OwnedStream",
    "Ownership",
    "PassReport",
    "PendingEntry",
    "PenstockError",
    "PickleSerializer",
    "ProducerMetrics",
    "Protection",
    "QueueStats",
    "RedisGateway",
    "RedisMessageQueue",
    "RetryConfig",
    "Serializer",
    "StreamAdded",
    "StreamBalancer",
    "StreamClient",
    "StreamConsumer",
    "StreamDisowned",
    "StreamExpired",
    "StreamMessage",
    "StreamProducer",
    "StreamStats",
    "StreamTerminated",
    "Topic",
    "TopicProducer",
    "import_queue",
]
__version__ = "0.1.0"
