"""Reliable work queues and data pipelines on Redis Streams.

The names here are async; `penstock.sync` has the same names for plain functions and threads.
"""

from penstock.config import ConsumerConfig
from penstock.errors import PenstockError
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
    "ImportReport",
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
    "import_queue",
]
__version__ = "0.1.0"
