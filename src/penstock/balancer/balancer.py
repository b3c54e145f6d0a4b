"""StreamBalancer: distributes whole data streams over the consumers of a service, with one owner at a time each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from penstock.balancer.commands import BalancerCommands, Exhausted
from penstock.balancer.config import BalancerConfig, BalancerOptions, consumer_id
from penstock.balancer.heartbeat import Heartbeat
from penstock.balancer.holdings import Holdings, Ownership
from penstock.balancer.messages import Info, LBSInfo, LBSInputMessage, StreamDisowned, Topic, terminated
from penstock.balancer.notice_queue import NoticeQueue
from penstock.balancer.orphans import Listener, Sweep
from penstock.balancer.owned_stream import OwnedStream
from penstock.balancer.reader import Reader
from penstock.balancer.runner import Runner, StreamHandler
from penstock.delivery.decoding import Rejected
from penstock.delivery.drain import CLEANUP_TIMEOUT_S
from penstock.errors import AlreadyClaimed, ConfigurationError, PenstockError, StreamNotOwned, text_of
from penstock.events import EventName
from penstock.keys import BalancerKeys
from penstock.number_checks import check_number
from penstock.policy import Reason
from penstock.redis.client import StreamClient, check_client
from penstock.runtime.aio import IS_ASYNC, TaskGroup, call_in_loop, connection_scope, pause, shielded
from penstock.serializers import JsonSerializer, Serializer
from penstock.type_checks import is_async

_BEAT_POLL_S = 0.002


class StreamBalancer:
    """One consumer of a balanced service.

    Guarantees: a data stream has one owner at a time, which holds a lock that a thread extends. When an owner dies or
    hands a stream over, the others get a notice; when it loses one, it gets one itself.
    """

    def __init__(
        self,
        client: StreamClient,
        service: str,
        *,
        id: str | None = None,
        **options: Unpack[BalancerOptions],
    ) -> None:
        check_client(client)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        config = BalancerConfig(**given)
        self.client, self.service, self._id, self.config = client, service, consumer_id(id), config
        self.keys, self._holdings = BalancerKeys.of(service), Holdings()
        self._commands = BalancerCommands(client, self.keys, self._id, config)
        self._notices = NoticeQueue(config.output_chan_size)
        self._sweep = Sweep(self._commands, self._holdings, self._notices)
        self._listener = Listener(client, config, self._sweep.check_expired, self._sweep.request_after_event)
        self._reader = Reader(self._commands, self._holdings, self._notices)
        self._heartbeat = Heartbeat(client.settings, self.keys, self._id, config, self._holdings, self._on_lease_lost)
        self._activities = TaskGroup(lambda: None)
        self._scope: object = None
        self._is_started = self._is_over = self._is_stop_requested = False
        self._failure: Exception | None = None
        self._runner: Runner | None = None

    @property
    def id(self) -> str:
        """The name of this consumer in the group, which is also the value of its locks."""
        return self._id

    @property
    def owned(self) -> list[Ownership]:
        """The data streams that this consumer owns now, oldest first."""
        return self._holdings.all()

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> NoticeQueue:
        """Start, and return the notices."""
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        """Hand over unfinished streams."""
        await self.done()

    async def start(self) -> NoticeQueue:
        """Join the service and return the notices, to be read with `async for`.

        Creates stream and group if they are missing. May be called only once.
        """
        if self._is_started:
            raise ConfigurationError(f"the balancer of {self.service!r} was already started; create a new one")
        self._is_started = True
        await self._commands.create_group()
        await self._listener.start()
        self._beat()
        self._activities.start(self._guarded, self._reader.run)
        # After each sweep, since a Go peer may have overwritten the setting when it started.
        self._activities.start(self._guarded, self._sweep.run, self._listener.switch_on)
        return self._notices

    def _beat(self) -> None:
        self._scope = connection_scope()
        self._heartbeat.start(at_once=True)

    async def _guarded(self, activity: Callable[..., Awaitable[None]], *args: object) -> None:
        # An activity that fails ends the notices, with its reason; locks are held until done() is called.
        try:
            await activity(*args)
        except Exception as error:
            self.config.logger.exception("the balancer of %s stops because of an error", self.service)
            self._failure = error
            self._notices.close(terminated(text_of(error)))

    async def done(self) -> None:
        """Leave the service: hand over unfinished streams and send the last notice. Nothing is marked finished."""
        if self._is_over:
            return
        self._is_over = True
        if self._scope is not None:  # it was started, or has claimed a stream
            await shielded(2 * CLEANUP_TIMEOUT_S, self._leave)

    async def _leave(self) -> None:
        self._sweep.stop()
        self._listener.stop()
        await self._reader.stop()
        await self._activities.join(CLEANUP_TIMEOUT_S)
        await self._activities.cancel()
        self._heartbeat.stop()
        try:
            await self._hand_over_all()
            await self._commands.leave()
        except PenstockError as error:
            self.config.logger.warning(
                "streams could not be handed over; other consumers take them over when their locks expire: %s", error
            )
        self._notices.close(terminated("done"))
        self._commands.emit(EventName.STOPPED)
        await self._listener.end(CLEANUP_TIMEOUT_S)  # last, because it is slow to end

    async def _hand_over_all(self) -> None:
        owned = self._holdings.all()
        if owned:
            await self._commands.release([ownership.payload for ownership in owned])
            self._handed_back(owned)
        for ownership in owned:
            self._forget(ownership)

    # --- streams ------------------------------------------------------------------------------------

    async def add_stream(self, name: str, info: Info | None = None) -> str:
        """Add a data stream to the service; return the id of its entry in the load balancer stream.

        If the name was already added, the new entry waits until the earlier one is finished.
        """
        return await self._commands.add(LBSInputMessage(name, info))

    async def claim(self, payload: LBSInfo) -> Ownership:
        """Become the owner of a stream whose owner is gone; start when this returns, because no notice follows.

        Raises AlreadyClaimed if it has an owner (perhaps this consumer) or is finished.
        """
        began_s, recorder = time.monotonic(), self.config.metrics_recorder
        name = payload.data_stream_name
        try:
            ownership = await self._claim(payload)
        except PenstockError:
            recorder.record_claim(name, is_success=False, duration_s=time.monotonic() - began_s)
            raise
        recorder.record_claim(name, is_success=True, duration_s=time.monotonic() - began_s)
        recorder.record_processing_started(name)
        self._commands.emit(EventName.RECLAIMED, count=1, ids=[payload.id_in_lbs])
        return ownership

    async def _claim(self, payload: LBSInfo) -> Ownership:
        if self._is_over:
            raise AlreadyClaimed(f"cannot claim {payload.data_stream_name!r}: this balancer has left the service")
        capacity = self.config.capacity
        if capacity is not None and len(self._holdings) >= capacity:
            raise AlreadyClaimed(
                f"cannot claim {payload.data_stream_name!r}: this consumer already owns capacity={capacity} streams"
            )
        with self._holdings.claiming(payload) as claim:
            if claim is None or self._holdings.get(payload.data_stream_name) is not None:
                raise AlreadyClaimed(f"already claimed: {payload.data_stream_name!r} is owned by this consumer")
            try:
                ownership = await self._commands.claim(claim, len(self._holdings))
            except Exhausted as error:
                await self._give_up(payload, error)
                raise
            self._holdings.add(ownership)
        self._beat()  # also for a claim before the start: nothing is owned without a heartbeat
        if self._is_over:  # during the claim, perhaps after done() handed over all streams
            await self._commands.release([payload])
            self._forget(ownership)
            raise AlreadyClaimed(
                f"cannot claim {payload.data_stream_name!r}: this balancer left the service during the claim"
            )
        return ownership

    async def _give_up(self, payload: LBSInfo, error: Exhausted) -> None:
        fields = (await self._commands.bodies([payload.id_in_lbs]))[0] or []
        rejected = Rejected(payload.id_in_lbs, Reason.MAX_DELIVERIES, error, error.deliveries, 0, fields)
        await self._commands.dead_letter(rejected, payload.data_stream_name)

    async def done_stream(self, name: str) -> None:
        """Finish a data stream: release it and delete its entry.

        Raises StreamNotOwned if this consumer does not own it; OwnershipLost if another one has taken it over.
        """
        ownership = self._settling(name, is_kept=True)
        try:
            await self._commands.done(ownership.payload)
        except StreamNotOwned:
            if self._holdings.remove(ownership):
                self._lost([ownership])
            raise
        except BaseException:
            self._holdings.resume(ownership)
            raise
        self._forget(ownership)
        self._commands.emit(EventName.COMPLETED, id=ownership.payload.id_in_lbs)

    async def release(self, name: str) -> None:
        """Hand over an unfinished data stream: its lock expires at once, which notifies every peer, also in Go.

        This consumer does not claim it again for some seconds. Raises like done_stream().
        """
        ownership = self._settling(name, is_kept=False)
        self._sweep.ignore_for_a_while(ownership.payload.id_in_lbs)
        try:
            await self._wait_for_beat()
            is_released = (await self._commands.release([ownership.payload]))[0]
        except BaseException:
            self._holdings.resume(ownership)
            raise
        self._forget(ownership)
        if not is_released:
            raise StreamNotOwned(f"{self._id} no longer owns data stream {name!r}; nothing was changed")
        self._handed_back([ownership])

    def _handed_back(self, owned: list[Ownership]) -> None:
        self._commands.emit(
            EventName.HANDED_BACK, count=len(owned), ids=[ownership.payload.id_in_lbs for ownership in owned]
        )

    async def _wait_for_beat(self) -> None:
        # A heartbeat that began before may extend the lock after its release.
        number, deadline_s = self._heartbeat.begun, time.monotonic() + self.config.lease_ms / 1000
        while self._heartbeat.is_under_way(number) and time.monotonic() < deadline_s:
            await pause(_BEAT_POLL_S)

    def _settling(self, name: str, *, is_kept: bool) -> Ownership:
        ownership = self._holdings.get(name)
        if ownership is None or not self._holdings.settle(ownership, is_kept=is_kept):
            raise StreamNotOwned(f"data stream {name!r} not found: {self._id} does not own it, or no longer does")
        return ownership

    def _forget(self, ownership: Ownership) -> None:
        if self._holdings.remove(ownership):
            name, recorder = ownership.payload.data_stream_name, self.config.metrics_recorder
            recorder.record_lock_released(name, is_success=True)
            recorder.record_processing_ended(name, time.monotonic() - ownership.since_s)
            self._reader.slot_is_free()
            if name in self._commands.queued:
                self._commands.queued.discard(name)
                self._sweep.request()  # another entry of the same name waits for this

    # --- what happens -------------------------------------------------------------------------------

    def _on_lease_lost(self, lost: list[Ownership]) -> None:
        call_in_loop(self._scope, self._lost, lost)  # from the heartbeat's thread

    def _lost(self, lost: list[Ownership]) -> None:
        for ownership in lost:
            name = ownership.payload.data_stream_name
            self.config.logger.warning("%s lost data stream %r to another consumer", self._id, name)
            self.config.metrics_recorder.record_processing_ended(name, time.monotonic() - ownership.since_s)
            if self._runner is not None:
                self._runner.lose(ownership)  # before any notice is read
            self._notices.put(StreamDisowned(ownership.payload, ownership.additional_info))
        self._commands.emit(EventName.LEASE_LOST, ids=[ownership.payload.id_in_lbs for ownership in lost])
        self._reader.slot_is_free()

    # --- running a handler -------------------------------------------------------------------------

    async def run(
        self,
        handler: StreamHandler,
        *,
        serializer: Serializer | None = None,
        rebalance: bool = True,
        shutdown_grace_ms: int = 10_000,
        handle_signals: bool = True,
    ) -> None:
        """Run a handler on every stream that this consumer gets, concurrently, until stop(), SIGTERM or SIGINT.

        `handler(stream)` reads the stream with `async for message in stream` and commits its position. Returning
        finishes the stream, unless the iteration ended because the stream must be handed over. An exception hands it
        over, too. A handler is cancelled when its stream is taken over. With a `serializer`, messages are decoded as in
        a StreamConsumer; without one, they have only `fields`.

        With `rebalance`, streams move to consumers that have fewer, after their handlers have ended.
        """
        check_number("shutdown_grace_ms", shutdown_grace_ms, may_be_zero=True)
        if self._runner is not None:
            raise ConfigurationError(f"the balancer of {self.service!r} already runs or has run; create a new one")
        grace_s = shutdown_grace_ms / 1000
        self._runner = Runner(self, self._commands, self._holdings, handler, serializer, rebalance, grace_s)
        if self._is_stop_requested:
            self._runner.stop()
        await self._runner.run(self.stop if handle_signals else None)
        if self._failure is not None:
            raise self._failure

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

        A shard is never finished: if its handler returns, it is handed out again. The service must have the topic's
        name.
        """
        if topic.name != self.service:
            raise ConfigurationError(
                f"run_topic() needs a balancer of the service {topic.name!r}, not {self.service!r}"
            )
        await self.announce(topic)

        async def handle(stream: OwnedStream) -> None:
            await handler(stream)
            stream.drain()

        is_fitting = is_async(handler) is IS_ASYNC  # else run() raises the error
        await self.run(
            handle if is_fitting else handler,
            serializer=serializer or JsonSerializer(),
            shutdown_grace_ms=shutdown_grace_ms,
            handle_signals=handle_signals,
        )

    async def announce(self, topic: Topic) -> int:
        """Register the shards of a topic; return how many are new."""
        topic.check_prefix(self.client.prefix)
        added = await self._commands.announce(topic.streams)
        if added < 0:
            topic.check_known(-added)
        return added

    def stop(self) -> None:
        """Make run() return; may be called from any thread and from signal handlers."""
        self._is_stop_requested = True
        if self._runner is not None:
            self._runner.stop()
