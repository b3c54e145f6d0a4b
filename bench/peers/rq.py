"""RQ with its worker that does not fork for each job, the faster of the two it ships."""

from __future__ import annotations

import logging

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers.adapter import BlockingAdapter
from bench.peers.handlers import PlainHandler, plain_handler
from bench.peers.params import STREAM, from_environment
from bench.peers.payload import Message

_JOB = "bench.peers.rq.handle"
_handlers: list[PlainHandler] = []


def handle(message: Message) -> None:
    """Counts the message; RQ finds this function by its name."""
    if not _handlers:
        _handlers.append(plain_handler(from_environment()))
    _handlers[0](message)


class Rq(BlockingAdapter):
    """Publishes by enqueueing a job."""

    def open(self) -> None:
        """Makes the queue; the connection is made on first use."""
        self._queue = Queue(STREAM, connection=Redis(port=self.params.port))

    def publish(self, message: Message) -> None:
        """Enqueues one job without a stored result, since no other peer stores any here."""
        self._queue.enqueue(_JOB, message, result_ttl=0)

    def publish_many(self, messages: list[Message]) -> None:
        """Enqueues a batch through one pipeline."""
        self._queue.enqueue_many([Queue.prepare_data(_JOB, (message,), result_ttl=0) for message in messages])

    def work(self) -> None:
        """Runs a worker."""
        self.open()
        SimpleWorker([self._queue], connection=self._queue.connection).work(logging_level=logging.ERROR)


ADAPTER = Rq
