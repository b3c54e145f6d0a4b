"""Finds streams that were handed out and have no owner: by sweeps, which are reliable, and by hints from Redis."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable

from penstock import ids
from penstock.balancer.commands import BalancerCommands
from penstock.balancer.config import BalancerConfig
from penstock.balancer.holdings import Holdings
from penstock.balancer.messages import LBSInfo, StreamExpired
from penstock.balancer.notice_queue import NoticeQueue
from penstock.errors import PenstockError, PermanentError
from penstock.keys import MUTEX_KEY_SEP, BalancerKeys
from penstock.model import PendingEntry
from penstock.policy import doubling
from penstock.redis.aio import Connection
from penstock.redis.client import StreamClient
from penstock.redis.settings import Host
from penstock.redis.subscription import Subscription
from penstock.runtime.aio import Flag, TaskGroup, next_tick

_LEAVE_TO_OTHERS_S = 5.0  # how long a consumer leaves to others what it has handed over
_AFTER_HINT_S = (
    0.2  # after a hint: the locks of a dead consumer expire together, but Redis sends some of their events late
)
_REST_PER_SWEEP = 5  # hints make a consumer sweep for at most a fifth of the time
_ROOM_S = 0.5  # how often to check whether a full queue of notices has room
_NEEDED = "KEx"
_SETTING = "notify-keyspace-events"
_POLL_S = 0.5
_GATHER_S = 0.01  # events of one dead consumer arrive together and are checked together
_RETRY_S, _LONGEST_RETRY_S = 0.5, 60.0


class Sweep:
    """Searches the pending entries for those whose lock is gone, and notifies the application."""

    def __init__(self, commands: BalancerCommands, holdings: Holdings, notices: NoticeQueue) -> None:
        self._commands, self._holdings, self._notices, self._config = commands, holdings, notices, commands.config
        self._known: dict[str, StreamExpired] = {}
        self._handed_over: dict[str, float] = {}
        self._reported: set[str] = set()  # entries whose locks this consumer may not look at
        self._stopping, self._requested = Flag(), Flag()
        self._took_s, self._not_before_s = 0.0, 0.0

    def stop(self) -> None:
        """Make run() end."""
        self._stopping.set()
        self._requested.set()

    def request(self) -> None:
        """Sweep without waiting for the interval."""
        self._requested.set()

    def request_after_event(self) -> None:
        """Sweep without waiting for the interval, but not continuously: after events, or gaps in them."""
        if not self._requested.is_set():
            rest_s = min(_REST_PER_SWEEP * self._took_s, self._config.recovery_interval_ms / 1000)
            self._not_before_s = time.monotonic() + max(_AFTER_HINT_S, rest_s)
            self._requested.set()

    def ignore_for_a_while(self, entry_id: str) -> None:
        """Ignore an entry for a while, because this consumer has handed it over."""
        now_s = time.monotonic()
        for old, until_s in self._handed_over.copy().items():  # several threads may hand over at once
            if until_s <= now_s:
                self._handed_over.pop(old, None)
        self._handed_over[entry_id] = now_s + _LEAVE_TO_OTHERS_S

    # --- pass by pass -------------------------------------------------------------------------------

    async def run(self, after_each: Callable[[], Awaitable[None]]) -> None:
        """Sweep until stop(); raise permanent errors."""
        interval_s, is_first = self._config.recovery_interval_ms / 1000, True
        while not self._stopping.is_set():
            began_s = time.monotonic()
            # Cleared before the sweep, so that a request meanwhile leads to another one.
            self._requested.clear()
            try:
                if await self._notices.wait_for_room(interval_s):
                    found = await self.run_once()
                    if is_first:
                        self._config.metrics_recorder.record_startup_recovery(found, time.monotonic() - began_s)
                        is_first = False
                await after_each()
            except PermanentError:
                raise
            except PenstockError as error:
                self._config.logger.warning("sweep of %s failed: %s", self._commands.keys.stream, error)
            if not self._stopping.is_set():
                # Random, so that peers that were started together do not sweep together.
                await self._requested.wait(interval_s * random.uniform(0.8, 1.0))
                await self._stopping.wait(max(0.0, self._not_before_s - time.monotonic()))

    async def run_once(self) -> int:
        """Search all pending entries, offer hints about those without an owner; return how many there are."""
        start, found, took_s = "-", 0, 0.0
        seen: set[str] = set()
        while True:
            began_s = time.thread_time()
            page = await self._commands.pending(start, self._config.lbs_recovery_count)
            seen.update(entry.id for entry in page)
            orphans = await self._orphans([entry for entry in page if self._may_be_orphan(entry)])
            took_s += time.thread_time() - began_s
            found += len(orphans)
            # Wait for the application, so that one search is enough for all of them.
            for hint in orphans:
                while not self._stopping.is_set() and not self._notices.offer(hint):
                    await self._notices.wait_for_room(_ROOM_S)
            if len(page) < self._config.lbs_recovery_count:
                break
            start = f"({page[-1].id}"
            await next_tick()
        self._known = {entry_id: hint for entry_id, hint in self._known.items() if entry_id in seen}
        self._reported &= seen
        # Of processor time: on a busy machine, or with a slow application, a sweep takes long and costs little. A rest
        # after that would delay the take-over of streams whose events Redis sends late.
        self._took_s = took_s
        return found

    async def check_expired(self, names: dict[str, str]) -> None:
        """Check hints: the names of data streams by the ids of the entries whose locks expired."""
        # Locks do not name their service: ignore those whose entry is not pending here under the same name.
        wanted = [entry_id for entry_id in names if ids.is_id(entry_id)]
        if not wanted:
            return
        try:
            pending = [entry for entry in await self._commands.pending_of(wanted) if entry is not None]
            orphans = await self._orphans([entry for entry in pending if self._may_take_over(entry)])
        except PenstockError as error:
            self._config.logger.warning(
                "cannot check a data stream whose lock expired; the next sweep finds it: %s", error
            )
            return
        hints = [hint for hint in orphans if names[hint.payload.id_in_lbs] == hint.payload.data_stream_name]
        refused = sum(not self._notices.offer(hint) for hint in hints)
        if refused:
            self._config.metrics_recorder.record_ksp_dropped(refused)
        if hints:
            # Redis sends the event of a lock when it deletes it, perhaps seconds after it expired. A sweep reads all.
            self.request_after_event()

    # --- entry by entry -----------------------------------------------------------------------------

    def _may_be_orphan(self, entry: PendingEntry) -> bool:
        # An entry that was read a moment ago is about to be locked.
        return entry.idle_ms >= self._config.lease_ms and self._may_take_over(entry)

    def _may_take_over(self, entry: PendingEntry) -> bool:
        # Not if we own it or have just handed it over.
        if self._holdings.has_entry(entry.id):
            return False
        # If another consumer has taken it since, that one has died, and it need not be left to others.
        return entry.consumer != self._commands.me or self._handed_over.get(entry.id, 0.0) <= time.monotonic()

    async def _orphans(self, entries: list[PendingEntry]) -> list[StreamExpired]:
        # Returns those whose lock is gone, in random order: peers start at different ones.
        hints = await self._describe(entries)
        are_locked = await self._commands.are_locked([hint.payload for hint in hints])
        found = list[StreamExpired]()
        for hint, is_locked in zip(hints, are_locked, strict=True):
            if isinstance(is_locked, PenstockError):
                self._report(hint.payload, is_locked)
            elif not is_locked:
                found.append(hint)
        random.shuffle(found)
        return found

    def _report(self, info: LBSInfo, error: PenstockError) -> None:
        # It may be for consumers with other rights; the entry stays pending.
        if info.id_in_lbs not in self._reported:
            self._reported.add(info.id_in_lbs)
            self._config.logger.warning(
                "cannot tell whether data stream %r, which entry %s of %s names, has an owner: %s",
                info.data_stream_name, info.id_in_lbs, self._commands.keys.stream, error,
            )  # fmt: skip

    async def _describe(self, entries: list[PendingEntry]) -> list[StreamExpired]:
        unknown = [entry for entry in entries if entry.id not in self._known]
        for entry, fields in zip(unknown, await self._commands.bodies([entry.id for entry in unknown]), strict=True):
            if fields is None:
                await self._commands.forget(entry.id)
                continue
            message = await self._commands.message_of(entry.id, fields, entry.delivery_count)
            if message is not None:
                self._known[entry.id] = StreamExpired(LBSInfo(message.data_stream_name, entry.id), message.info)
        return [self._known[entry.id] for entry in entries if entry.id in self._known]


def merged(flags: str) -> str:
    """Return the flags of notify-keyspace-events plus those that a balancer needs."""
    has = set(flags) | (set("x") if "A" in flags else set())
    return flags + "".join(flag for flag in _NEEDED if flag not in has)


class Listener:
    """Listens for expired locks: hints that let peers take over immediately instead of at the next sweep.

    Subscribes to both kinds of events, since a Go peer of another version may have switched one of them off.
    """

    def __init__(
        self,
        client: StreamClient,
        config: BalancerConfig,
        on_expired: Callable[[dict[str, str]], Awaitable[None]],
        on_gap: Callable[[], None],
    ) -> None:
        self._client, self._config, self._on_expired, self._on_gap = client, config, on_expired, on_gap
        self._stopping = Flag()
        self._listening = TaskGroup(lambda: None)
        db = client.settings.db
        self._events = f"__keyevent@{db}__:expired"
        self._keyspace = f"__keyspace@{db}__:"
        self._patterns = [self._events, f"{self._keyspace}*{MUTEX_KEY_SEP}*"]
        self._is_logged, self._failures = False, 0
        self._hosts: set[Host] = set()  # with a subscription

    async def start(self) -> None:
        """Listen to every server, in the background, until stop()."""
        await self.switch_on()
        await self._follow_masters()
        self._listening.start(self._run)

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()

    async def end(self, timeout_s: float) -> None:
        """Wait after stop() until all subscriptions have ended, at most `timeout_s`."""
        await self._listening.join(timeout_s)
        await self._listening.cancel()

    async def switch_on(self) -> None:
        """Make the servers send events, in addition to those already enabled; it may be forbidden."""
        for connection in await self._client.to_masters():
            try:
                await self._switch_on(connection)
            except PenstockError as error:
                if not self._is_logged:
                    self._config.logger.info(
                        "cannot enable keyspace notifications (%s); sweeps find streams without an owner", error
                    )
                self._is_logged = True

    @staticmethod
    async def _switch_on(connection: Connection) -> None:
        reply = await connection.call("CONFIG", "GET", _SETTING)
        flags = reply[1].decode() if len(reply) > 1 else ""
        if merged(flags) != flags:
            await connection.call("CONFIG", "SET", _SETTING, merged(flags))

    async def open(self, host: Host) -> Subscription | None:
        """Subscribe; return None if that failed, to be retried."""
        subscription = Subscription(self._client.settings, host, self._patterns)
        try:
            await subscription.open()
        except PenstockError as error:
            if not self._failures:  # logged once, not with each try
                self._config.logger.warning(
                    "cannot subscribe to keyspace notifications: %s; sweeps find streams without an owner", error
                )
            self._failures += 1
            await subscription.close()
            return None
        self._failures = 0
        return subscription

    async def _run(self) -> None:
        # After a failover, or when a subscription breaks. Pub/sub loses messages: a sweep finds what was missed.
        while not await self._stopping.wait(doubling(_RETRY_S, self._failures + 1, _LONGEST_RETRY_S)):
            try:
                if await self._follow_masters():
                    self._on_gap()
                    await self.switch_on()
            except PenstockError as error:
                self._config.logger.debug("cannot find the masters to subscribe to: %s", error)

    async def _follow_masters(self) -> bool:
        # Subscribe to masters without a subscription; return whether there were any.
        has_new = False
        for host in await self._client.masters():
            subscription = None if host in self._hosts else await self.open(host)
            if subscription is not None:
                self._hosts.add(host)
                self._listening.start(self._listen, host, subscription)
                has_new = True
        return has_new

    async def _listen(self, host: Host, subscription: Subscription) -> None:
        try:
            await self._receive(subscription)
        except PenstockError as error:
            self._config.logger.warning("lost the subscription to keyspace notifications; subscribing again: %s", error)
        except Exception:
            self._config.logger.exception(
                "lost the subscription to keyspace notifications; subscribing again"
            )  # sweeps continue
        finally:
            self._hosts.discard(host)
            await subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        last_event_s = time.monotonic()
        while not self._stopping.is_set():
            first = await subscription.next(_POLL_S)
            if first is not None:
                last_event_s = time.monotonic()
                await self._on_expired(await self._gather(subscription, first))
            elif time.monotonic() - last_event_s > self._config.ksp_chan_timeout:
                last_event_s = time.monotonic()
                await subscription.ping()

    async def _gather(self, subscription: Subscription, first: tuple[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        until_s, message = time.monotonic() + _GATHER_S, first
        while True:
            lock = self._lock_of(*message)
            if lock is not None:
                found[lock[1]] = lock[0]
            if time.monotonic() > until_s or len(found) >= self._config.ksp_chan_size:
                break  # the rest stays in the connection's buffer
            following = await subscription.next(0)
            if following is None:
                break
            message = following
        self._config.metrics_recorder.record_ksp_received(len(found))
        return found

    def _lock_of(self, channel: str, text: str) -> tuple[str, str] | None:
        if channel == self._events:
            return BalancerKeys.split_lock(text)
        if text == "expired" and channel.startswith(self._keyspace):
            return BalancerKeys.split_lock(channel[len(self._keyspace) :])
        return None
