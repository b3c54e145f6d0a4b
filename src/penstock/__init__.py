"""Reliable work queues and data pipelines on Redis Streams.

The names here are async; `penstock.sync` has the same names for plain functions and threads.
"""

from penstock.lazy_imports import lazy_names as _lazy_names
from penstock.logs import install as _install_logs

_install_logs()

# Imported when they are first used: redis-py alone takes a tenth of a second, which settings, results and the command
# line need not spend. `make sync` writes the same names into __init__.pyi, for type checkers and editors.
__getattr__, __dir__, __all__ = _lazy_names(
    __name__,
    {
        "penstock.balancer.balancer": ["StreamBalancer"],
        "penstock.balancer.config": ["RetryConfig"],
        "penstock.balancer.holdings": ["Ownership"],
        "penstock.balancer.messages": [
            "LBSInfo",
            "LBSInputMessage",
            "StreamAdded",
            "StreamDisowned",
            "StreamExpired",
            "StreamTerminated",
            "Topic",
        ],
        "penstock.balancer.owned_stream": ["OwnedStream"],
        "penstock.balancer.topic_producer": ["TopicProducer"],
        "penstock.config": ["ConsumerConfig"],
        "penstock.dead_letter_limits": ["DeadLetterLimits"],
        "penstock.errors": ["FatalError", "PenstockError", "RetryLater", "Snooze"],
        "penstock.events": ["Event", "EventName"],
        "penstock.model": [
            "ConsumerInfo",
            "ConsumerMetrics",
            "DeadLetter",
            "Health",
            "Lag",
            "PassReport",
            "PendingEntry",
            "ProducerMetrics",
            "StreamMessage",
            "StreamStats",
        ],
        "penstock.protection": ["Protection"],
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
        "penstock.serializers": ["JsonSerializer", "MsgpackSerializer", "PickleSerializer", "Serializer"],
        "penstock.streams.consumer": ["StreamConsumer"],
        "penstock.delivery.dead_letters": ["DeadLetters"],
        "penstock.delivery.group": ["ConsumerGroup"],
        "penstock.streams.producer": ["StreamProducer"],
    },
)
__version__ = "0.1.0"
