"""One consumer of a balanced service: joins it, owns streams, hears of others' and leaves."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from penstock.balancer.commands import BalancerCommands, Exhausted
from penstock.balancer.config import BalancerConfig
from penstock.balancer.fairness import Peer
from penstock.balancer.heartbeat import Heartbeat
from penstock.balancer.holdings import Holdings, Ownership
from penstock.balancer.listener import Listener
from penstock.balancer.messages import Info, LBSInfo, LBSInputMessage
from penstock.balancer.notice_queue import NoticeQueue
from penstock.balancer.notices import Notice, StreamDisowned, StreamExpired, terminated
from penstock.balancer.reader import Reader
from penstock.balancer.sweep import Sweep
from penstock.delivery.decoding import Rejected
from penstock.errors import AlreadyClaimed, ConfigurationError, PenstockError, PermanentError, StreamNotOwned, text_of
from penstock.keys import BalancerKeys
from penstock.policy import Reason
from penstock.redis.client import StreamClient
from penstock.redis.subscription import Subscription
from penstock.runtime.aio import Event, TaskGroup, call_in_loop, home, pause, shielded

_CLEANUP_TIMEOUT_S = 10.0
_BEAT_POLL_S = 0.002
_SWARM_S = 0.2  # after a hint: those of one dead consumer come together, but Redis notices the last of them late
_MOST_SWEEPING = 5  # hints make a consumer sweep for no more than one part in so many of its time
_ROOM_S = 0.5  # how soon a full queue of notices is looked at again, should the application read nothing


class Notices:
    """The notices of a running balancer, in their order."""

    def __init__(self, queue: NoticeQueue) -> None:
        self._queue = queue

    def __aiter__(self) -> AsyncIterator[Notice]:
        return self

    async def __anext__(self) -> Notice:
        notice = await self._queue.get()
        if notice is None:
            raise StopAsyncIteration
        return notice


class Service:
    """The parts of a balancer, put together. StreamBalancer is this with its settings spelled out."""

    def __init__(self, client: StreamClient, service: str, me: str, config: BalancerConfig) -> None:
        self.client, self.service, self._id, self.config = client, service, me, config
        self.keys, self._holdings = BalancerKeys.of(service), Holdings()
        self._commands = BalancerCommands(client, self.keys, self._id, self.config)
        self._sweep = Sweep(self._commands, self._holdings, self.config)
        self._notices = NoticeQueue(self.config.output_chan_size)
        self._reader = Reader(client, self._commands, self._holdings, self._notices, self.config)
        self._listener = Listener(client, self._commands, self._sweep, self.config, self._found)
        self._heartbeat = Heartbeat(client.settings, self.keys, self._id, self.config, self._holdings, self._told_lost)
        self._activities, self._listening = TaskGroup(lambda: None), TaskGroup(lambda: None)
        self._stopping, self._sweep_soon = Event(), Event()
        self._swept_s, self._sweep_from_s = 0.0, 0.0
        self._home: object = None
        self._is_started = self._is_over = False
        self._on_lost: Callable[[Ownership], None] | None = None
        self._failure: Exception | None = None

    @property
    def id(self) -> str:
        """The name of this consumer in the group, which is also the value of its locks."""
        return self._id

    @property
    def owned(self) -> list[Ownership]:
        """What this consumer owns now, oldest first."""
        return self._holdings.all()

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Notices:
        """Start, and return the notices."""
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        """Hand over what is not finished."""
        await self.done()

    async def start(self) -> Notices:
        """Join the service and return the notices, to be read by `async for`.

        Creates stream and group if they are missing. Called once.
        """
        if self._is_started:
            raise ConfigurationError("a balancer is started once: make a new one")
        self._is_started = True
        await self._commands.create_group()
        await self._listener.switch_on()
        subscriptions = await self._subscribe()
        self._beat()
        for host, subscription in subscriptions:
            self._listening.start(self._listener.run, host, subscription)
        self._activities.start(self._guarded, self._reader.run)
        self._activities.start(self._guarded, self._keep_sweeping)
        return Notices(self._notices)

    def _beat(self) -> None:
        self._home = home()
        self._heartbeat.start()

    async def _subscribe(self) -> list[tuple[tuple[str, int], Subscription | None]]:
        hosts = await self.client.masters()
        return [(host, await self._listener.open(host)) for host in hosts]

    async def _guarded(self, activity: Callable[[], Awaitable[None]]) -> None:
        # An activity that cannot go on ends the notices, with its reason; locks are held until done() is called.
        try:
            await activity()
        except Exception as error:
            self.config.logger.exception("the balancer of %s stops", self.service)
            self._failure = error
            self._notices.close(terminated(text_of(error)))

    async def done(self) -> None:
        """Leave the service: hand over what is not finished, tell the last notice, end. Nothing is marked finished."""
        if self._is_over:
            return
        self._is_over = True
        if self._home is not None:  # it was started, or has claimed something
            await shielded(_CLEANUP_TIMEOUT_S, self._leave)

    async def _leave(self) -> None:
        self._stopping.set()
        self._sweep_soon.set()
        self._listener.stop()
        try:
            await self._reader.stop()
        except PenstockError as error:
            self.config.logger.warning("the reader is not unblocked: %s", error)
        await self._activities.join(_CLEANUP_TIMEOUT_S / 2)
        await self._activities.cancel()
        self._heartbeat.stop()
        try:
            await self._hand_over_all()
            await self._commands.leave()
        except PenstockError as error:
            self.config.logger.warning("streams are left to run out: %s", error)
        self._notices.close(terminated("done"))
        await self._listening.join(_CLEANUP_TIMEOUT_S / 2)  # last: they are slow to end, and nobody waits for them
        await self._listening.cancel()

    async def _hand_over_all(self) -> None:
        owned = self._holdings.all()
        if owned:
            await self._commands.release([ownership.payload for ownership in owned])
        for ownership in owned:
            self._forget(ownership)

    # --- work ---------------------------------------------------------------------------------------

    async def add_stream(self, name: str, info: Info | None = None) -> str:
        """Add a data stream to the service; return the id of its entry in the load balancer stream.

        A name that is there already waits until the entry before it is finished.
        """
        return await self._commands.add(LBSInputMessage(name, info))

    async def claim(self, payload: LBSInfo) -> Ownership:
        """Become the owner of a stream whose owner is gone; returning is the signal to begin, no notice follows.

        Raises AlreadyClaimed when it has an owner (this consumer, maybe) or is finished: somebody was first.
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
        return ownership

    async def _claim(self, payload: LBSInfo) -> Ownership:
        if self._is_over:
            raise AlreadyClaimed(f"{payload.data_stream_name!r} is left to others: this balancer is done")
        capacity = self.config.capacity
        if capacity is not None and len(self._holdings) >= capacity:
            raise AlreadyClaimed(f"{payload.data_stream_name!r} is left to others: capacity={capacity} is used up")
        is_owned = self._holdings.get(payload.data_stream_name) is not None
        claim = None if is_owned else self._holdings.begin_claim(payload)
        if claim is None:
            raise AlreadyClaimed(f"already claimed: {payload.data_stream_name!r} is with this very consumer")
        try:
            ownership = await self._commands.claim(claim, len(self._holdings))
            self._holdings.add(ownership)
        except Exhausted as error:
            await self._give_up(payload, error)
            raise
        finally:
            self._holdings.end_claim(claim)
        self._beat()  # also for a claim before the start: nothing is owned without a heartbeat
        if self._is_over:  # while the claim was under way; whoever hands over what is left may have passed by
            await self._commands.release([payload])
            self._forget(ownership)
            raise AlreadyClaimed(f"{payload.data_stream_name!r} is handed on: this balancer is done")
        return ownership

    async def _give_up(self, payload: LBSInfo, error: Exhausted) -> None:
        fields = (await self._commands.bodies([payload.id_in_lbs]))[0] or []
        rejected = Rejected(payload.id_in_lbs, Reason.MAX_DELIVERIES, error, error.deliveries, 0, fields)
        await self._commands.dead_letter(rejected, payload.data_stream_name)

    async def done_stream(self, name: str) -> None:
        """Finish a data stream: it is nobody's any more, and its entry is deleted.

        Raises StreamNotOwned when this consumer does not own it; OwnershipLost when another one has taken it over.
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

    async def release(self, name: str) -> None:
        """Hand a data stream over, unfinished: its lock runs out at once, which tells every peer, in Go as well.

        This consumer leaves it to others for some seconds. Raises as done_stream().
        """
        ownership = self._settling(name, is_kept=False)
        self._sweep.keep_away(ownership.payload.id_in_lbs)
        try:
            await self._wait_for_beat()
            is_released = (await self._commands.release([ownership.payload]))[0]
        except BaseException:
            self._holdings.resume(ownership)
            raise
        self._forget(ownership)
        if not is_released:
            raise StreamNotOwned(f"{name!r} was not owned by {self._id} any more; nothing was changed")

    async def _wait_for_beat(self) -> None:
        # One that began before may extend the lock after it was given up.
        number, deadline_s = self._heartbeat.begun, time.monotonic() + self.config.lock_ttl_ms / 1000
        while self._heartbeat.is_under_way(number) and time.monotonic() < deadline_s:
            await pause(_BEAT_POLL_S)

    def _settling(self, name: str, *, is_kept: bool) -> Ownership:
        ownership = self._holdings.get(name)
        if ownership is None or not self._holdings.settle(ownership, is_kept=is_kept):
            raise StreamNotOwned(f"data stream {name!r} not found: {self._id} does not own it (any more)")
        return ownership

    def _forget(self, ownership: Ownership) -> None:
        if self._holdings.remove(ownership):
            name, recorder = ownership.payload.data_stream_name, self.config.metrics_recorder
            recorder.record_lock_released(name, is_success=True)
            recorder.record_processing_ended(name, time.monotonic() - ownership.since_s)
            self._reader.slot_is_free()
            if name in self._commands.queued:
                self._commands.queued.discard(name)
                self._sweep_soon.set()  # another entry of the same name has waited for this

    # --- what happens -------------------------------------------------------------------------------

    def _told_lost(self, lost: list[Ownership]) -> None:
        call_in_loop(self._home, self._lost, lost)  # from the heartbeat's thread

    def _lost(self, lost: list[Ownership]) -> None:
        for ownership in lost:
            name = ownership.payload.data_stream_name
            self.config.logger.warning("%s has lost %r: another consumer owns it", self._id, name)
            self.config.metrics_recorder.record_processing_ended(name, time.monotonic() - ownership.since_s)
            if self._on_lost is not None:
                self._on_lost(ownership)
            self._notices.put(StreamDisowned(ownership.payload, ownership.additional_info))
        self._reader.slot_is_free()

    def _found(self, hints: list[StreamExpired]) -> None:
        refused = sum(not self._notices.offer(hint) for hint in hints)
        if refused:
            self.config.metrics_recorder.record_ksp_dropped(refused)
        if hints and not self._sweep_soon.is_set():
            # Redis tells of a lock when it deletes it, which may be seconds after it ran out. The sweep asks for all.
            rest_s = min(_MOST_SWEEPING * self._swept_s, self.config.sweep_interval_ms / 1000)
            self._sweep_from_s = time.monotonic() + max(_SWARM_S, rest_s)
            self._sweep_soon.set()

    async def _announce(self, hints: list[StreamExpired]) -> None:
        # A sweep waits for the application, so that one look at the pending entries is enough for all of them.
        for hint in hints:
            while not self._stopping.is_set() and not self._notices.offer(hint):
                await self._notices.wait_for_room(_ROOM_S)

    async def _keep_sweeping(self) -> None:
        interval_s, is_first = self.config.sweep_interval_ms / 1000, True
        while not self._stopping.is_set():
            began_s = time.monotonic()
            # Lowered before the look, so that whatever is told meanwhile leads to another one.
            self._sweep_soon.clear()
            try:
                if await self._notices.wait_for_room(interval_s):
                    found = await self._sweep.run_once(self._announce)
                    self._swept_s = time.monotonic() - began_s
                    if is_first:
                        self.config.metrics_recorder.record_startup_recovery(found, time.monotonic() - began_s)
                        is_first = False
                await self._listener.switch_on()  # a Go peer that has started since may have overwritten it
            except PermanentError:
                raise
            except PenstockError as error:
                self.config.logger.warning("sweep of %s failed: %s", self.keys.stream, error)
            if not self._stopping.is_set():
                # Peers that were started together do not sweep together.
                await self._sweep_soon.wait(interval_s * random.uniform(0.8, 1.0))
                await self._stopping.wait(max(0.0, self._sweep_from_s - time.monotonic()))

    # --- what a run of a handler needs --------------------------------------------------------------

    @property
    def logger(self) -> logging.Logger:
        """Where this consumer logs."""
        return self.config.logger

    def on_lost(self, hook: Callable[[Ownership], None]) -> None:
        """Have a function called, before any notice is read, when a stream is lost."""
        self._on_lost = hook

    def ownership(self, payload: LBSInfo) -> Ownership | None:
        """Return the ownership of a stream, if it is owned by this very entry."""
        found = self._holdings.get(payload.data_stream_name)
        return found if found is not None and found.payload == payload else None

    async def finish(self, ownership: Ownership) -> None:
        """Finish a stream, unless it is another ownership's by now."""
        self._check_still(ownership)
        await self.done_stream(ownership.payload.data_stream_name)

    async def give_back(self, ownership: Ownership) -> None:
        """Hand a stream over, unless it is another ownership's by now."""
        self._check_still(ownership)
        await self.release(ownership.payload.data_stream_name)

    def _check_still(self, ownership: Ownership) -> None:
        if self._holdings.get(ownership.payload.data_stream_name) is not ownership:
            raise StreamNotOwned(f"{ownership.payload.data_stream_name!r} is not owned any more")

    async def live_peers(self) -> dict[str, Peer]:
        """Return the live consumers of the service that have registered, this one included."""
        peers, now_ms = await self._commands.peers(), await self._commands.now_ms()
        live = {name: Peer(owned, capacity) for name, (until, owned, capacity) in peers.items() if until >= now_ms}
        return {**live, self._id: Peer(len(self._holdings), self.config.capacity or 0)}

    def raise_failure(self) -> None:
        """Raise what ended the service, if it did not end by itself."""
        if self._failure is not None:
            raise self._failure
