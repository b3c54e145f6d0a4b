"""Reliable work queues and data pipelines on Redis Streams.

The names here are async; `penstock.sync` has the same names for plain functions and threads.
"""

from penstock.balancer.balancer import StreamBalancer
from penstock.balancer.config import RetryConfig
from penstock.balancer.holdings import Ownership
from penstock.balancer.messages import LBSInfo, LBSInputMessage
from penstock.balancer.notices import StreamAdded, StreamDisowned, StreamExpired, StreamTerminated
from penstock.balancer.owned_stream import OwnedStream
from penstock.balancer.topic import Topic
from penstock.balancer.topic_producer import TopicProducer
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
from penstock.redis.client import StreamClient
from penstock.serializers import JsonSerializer, MsgpackSerializer, PickleSerializer, Serializer
from penstock.streams.consumer import StreamConsumer
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.group import ConsumerGroup
from penstock.streams.producer import StreamProducer

__all__ = [
    "ConsumerConfig",
    "ConsumerGroup",
    "ConsumerInfo",
    "ConsumerMetrics",
    "DeadLetter",
    "DeadLetters",
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
]
__version__ = "0.1.0"
