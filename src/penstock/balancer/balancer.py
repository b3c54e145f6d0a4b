"""StreamBalancer: whole data streams shared out over the consumers of a service, each with one owner at a time."""

from __future__ import annotations

from typing import Any, Unpack

from penstock.balancer.config import BalancerConfig, BalancerOptions
from penstock.balancer.identity import consumer_id
from penstock.balancer.owned_stream import OwnedStream
from penstock.balancer.runner import Runner, StreamHandler
from penstock.balancer.service import Service
from penstock.balancer.topic import Topic
from penstock.balancer.topic_producer import check_prefix, wrong_number
from penstock.delivery.callables import is_async
from penstock.errors import ConfigurationError
from penstock.number_checks import check_number
from penstock.redis.client import StreamClient
from penstock.runtime.aio import IS_ASYNC
from penstock.serializers import JsonSerializer, Serializer
from penstock.shutdown import SignalWatch


class StreamBalancer(Service):
    """One consumer of a balanced service.

    Guarantees: a data stream has one owner at a time, known by a lock that this process extends from a thread of its
    own. When an owner dies, or hands a stream over, the others are told; when it loses one, it is told itself.
    """

    def __init__(
        self,
        client: StreamClient,
        service: str,
        *,
        id: str | None = None,
        **options: Unpack[BalancerOptions],
    ) -> None:
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        super().__init__(client, service, consumer_id(id), BalancerConfig(**given))
        self._runner: Runner | None = None
        self._is_asked_to_stop = False

    async def run(
        self,
        handler: StreamHandler,
        *,
        serializer: Serializer | None = None,
        rebalance: bool = True,
        shutdown_grace_ms: int = 10_000,
        handle_signals: bool = True,
    ) -> None:
        """Run a handler on every stream that this consumer gets, side by side, until stop(), SIGTERM or SIGINT.

        `handler(stream)` reads the stream by `async for message in stream` and commits how far it is. Returning means
        that the stream is done. When its iteration ends by itself, the stream is to be handed over. An exception hands
        it over, too. A handler is cancelled when its stream was taken over. With a `serializer`, messages are decoded
        as those of a consumer; without, they have `fields` only.

        With `rebalance`, streams move to consumers that have fewer, one handler after the other being let go first.
        """
        check_number("shutdown_grace_ms", shutdown_grace_ms, may_be_zero=True)
        if self._runner is not None:
            raise ConfigurationError("a balancer runs once: make a new one")
        self._runner = Runner(self, handler, serializer, rebalance, shutdown_grace_ms / 1000)
        if self._is_asked_to_stop:
            self._runner.stop()
        watch = SignalWatch.subscribe(self.stop) if handle_signals else None
        try:
            await self._runner.run()
        finally:
            if watch is not None:
                watch()

    async def run_topic(
        self,
        topic: Topic,
        handler: StreamHandler,
        *,
        serializer: Serializer | None = None,
        shutdown_grace_ms: int = 10_000,
        handle_signals: bool = True,
    ) -> None:
        """Run a handler on every shard of a topic that this consumer gets, as run() does.

        A shard is never done: one whose handler returns is handed out again. The service must be the topic's name.
        """
        if topic.name != self.service:
            raise ConfigurationError(f"the balancer of topic {topic.name!r} must have its name, not {self.service!r}")
        await self.announce(topic)

        async def handle(stream: OwnedStream) -> None:
            await handler(stream)
            stream.drain()

        is_fitting = is_async(handler) is IS_ASYNC  # else run() says what is wrong with it
        await self.run(
            handle if is_fitting else handler,
            serializer=serializer or JsonSerializer(),
            shutdown_grace_ms=shutdown_grace_ms,
            handle_signals=handle_signals,
        )

    async def announce(self, topic: Topic) -> int:
        """Have the shards of a topic shared out; return how many were not known yet."""
        check_prefix(self.client)
        added = await self._commands.announce(topic.streams)
        if added < 0:
            raise wrong_number(topic, -added)
        return added

    def stop(self) -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._is_asked_to_stop = True
        if self._runner is not None:
            self._runner.stop()
