"""huey with a consumer of 8 threads; it has no acknowledgement: a task is popped before it runs."""

from __future__ import annotations

import logging

from huey import RedisHuey

from bench.peers.adapter import BlockingAdapter
from bench.peers.handlers import plain_handler
from bench.peers.params import STREAM
from bench.peers.payload import Message

_THREADS = 8


class Huey(BlockingAdapter):
    """Publishes by calling a task."""

    def open(self) -> None:
        """Declares the task; the connection is made on first use."""

        @self._huey().task(name="handle")  # type: ignore[untyped-decorator]
        def handle(_message: Message) -> None: ...

        self._handle = handle

    def publish(self, message: Message) -> None:
        """Enqueues one task."""
        self._handle(message)

    def work(self) -> None:
        """Runs a consumer."""
        huey, inner = self._huey(), plain_handler(self.params)

        @huey.task(name="handle")  # type: ignore[untyped-decorator]
        def handle(message: Message) -> None:
            inner(message)

        logging.getLogger("huey").setLevel(logging.ERROR)
        huey.create_consumer(workers=_THREADS, worker_type="thread", periodic=False).run()

    def _huey(self) -> RedisHuey:
        return RedisHuey(STREAM, host="127.0.0.1", port=self.params.port, results=False)


ADAPTER = Huey
