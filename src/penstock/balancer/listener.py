"""Hears of locks that ran out: a hint that lets peers take over at once instead of at the next sweep."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock import ids
from penstock.balancer.commands import BalancerCommands
from penstock.balancer.config import BalancerConfig
from penstock.balancer.notices import StreamExpired
from penstock.balancer.sweep import Sweep
from penstock.errors import PenstockError
from penstock.keys import MUTEX_KEY_SEP, BalancerKeys
from penstock.redis.aio import Connection
from penstock.redis.client import StreamClient
from penstock.redis.settings import Host
from penstock.redis.subscription import Subscription
from penstock.runtime.aio import Event

_NEEDED = "KEx"
_SETTING = "notify-keyspace-events"
_POLL_S = 0.5
_GATHER_S = 0.01  # events of one dead consumer come in a swarm and are looked into together
_RETRY_S, _LONGEST_RETRY_S = 0.5, 60.0


def merged(flags: str) -> str:
    """Return the flags of notify-keyspace-events with those added that a balancer needs; none is taken away."""
    has = set(flags) | (set("x") if "A" in flags else set())
    return flags + "".join(flag for flag in _NEEDED if flag not in has)


class Listener:
    """Listens on one server for locks of this service that run out.

    Both flavours of events are heard, since a Go peer of another version may have switched one of them off.
    """

    def __init__(
        self,
        client: StreamClient,
        commands: BalancerCommands,
        sweep: Sweep,
        config: BalancerConfig,
        on_found: Callable[[list[StreamExpired]], object],
    ) -> None:
        self._client, self._commands, self._sweep, self._config = client, commands, sweep, config
        self._on_found = on_found
        self._stopping = Event()
        db = client.settings.db
        self._events = f"__keyevent@{db}__:expired"
        self._spaces = f"__keyspace@{db}__:"
        self._patterns = [self._events, f"{self._spaces}*{MUTEX_KEY_SEP}*"]
        self._is_told, self._failures = False, 0
        self._hosts: set[Host] = set()  # that somebody listens to

    def stop(self) -> None:
        """Let run() end."""
        self._stopping.set()

    async def switch_on(self) -> None:
        """Have the servers send events, beside those that others have asked for; forbidden is fine."""
        for connection in await self._client.to_masters():
            try:
                await self._switch_on(connection)
            except PenstockError as error:
                if not self._is_told:
                    self._config.logger.info("no events of Redis (%s): sweeps find streams without an owner", error)
                self._is_told = True

    @staticmethod
    async def _switch_on(connection: Connection) -> None:
        reply = await connection.call("CONFIG", "GET", _SETTING)
        flags = reply[1].decode() if len(reply) > 1 else ""
        if merged(flags) != flags:
            await connection.call("CONFIG", "SET", _SETTING, merged(flags))

    async def open(self, host: Host) -> Subscription | None:
        """Subscribe; None = not now, run() tries again."""
        subscription = Subscription(self._client.settings, host, self._patterns)
        try:
            await subscription.open()
        except PenstockError as error:
            if not self._failures:  # told once, not with each try
                self._config.logger.warning("cannot listen for events: %s; sweeps do without", error)
            self._failures += 1
            await subscription.close()
            return None
        self._failures = 0
        return subscription

    async def run(self, host: Host, subscription: Subscription | None) -> None:
        """Listen until stop(); a broken subscription is made anew, and what it missed is left to the sweep."""
        self._hosts.add(host)
        while not self._stopping.is_set():
            if subscription is None:
                host = await self._follow(host)
                subscription = await self.open(host)
            if subscription is not None:
                try:
                    await self._listen(subscription)
                except PenstockError as error:
                    self._config.logger.warning("no events for now: %s", error)
                except Exception:
                    self._config.logger.exception("no events for now")  # sweeps go on
                await subscription.close()
                subscription = None
            if not self._stopping.is_set():
                await self._stopping.wait(min(_RETRY_S * 2 ** min(self._failures, 16), _LONGEST_RETRY_S))

    async def _follow(self, host: Host) -> Host:
        # A server that was replaced has no locks any more, or those of the past.
        try:
            masters = await self._client.masters()
            new = [master for master in masters if master not in self._hosts]
            if host not in masters and new:
                self._hosts = {*self._hosts, new[0]} - {host}
                host = new[0]
                await self.switch_on()
        except PenstockError as error:
            self._config.logger.debug("no events for now: %s", error)
        return host

    async def _listen(self, subscription: Subscription) -> None:
        heard_s = time.monotonic()
        while not self._stopping.is_set():
            first = await subscription.next(_POLL_S)
            if first is not None:
                heard_s = time.monotonic()
                await self._look_into(await self._gather(subscription, first))
            elif time.monotonic() - heard_s > self._config.ksp_chan_timeout:
                heard_s = time.monotonic()
                await subscription.ping()

    async def _gather(self, subscription: Subscription, first: tuple[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        until_s, message = time.monotonic() + _GATHER_S, first
        while True:
            lock = self._lock_of(*message)
            if lock is not None:
                found[lock[1]] = lock[0]
            if time.monotonic() > until_s or len(found) >= self._config.ksp_chan_size:
                break  # the rest waits in the connection
            following = await subscription.next(0)
            if following is None:
                break
            message = following
        self._config.metrics_recorder.record_ksp_received(len(found))
        return found

    def _lock_of(self, channel: str, text: str) -> tuple[str, str] | None:
        if channel == self._events:
            return BalancerKeys.split_lock(text)
        if text == "expired" and channel.startswith(self._spaces):
            return BalancerKeys.split_lock(channel[len(self._spaces) :])
        return None

    async def _look_into(self, names: dict[str, str]) -> None:
        # Locks do not name their service: only those count whose entry is pending here, under the same name.
        wanted = [entry_id for entry_id in names if _is_id(entry_id)]
        if not wanted:
            return
        try:
            pending = [entry for entry in await self._commands.pending_of(wanted) if entry is not None]
            orphans = await self._sweep.orphans([entry for entry in pending if self._sweep.concerns_us(entry)])
        except PenstockError as error:
            self._config.logger.warning("a hint was not followed: %s", error)
            return
        self._on_found([hint for hint in orphans if names[hint.payload.id_in_lbs] == hint.payload.data_stream_name])


def _is_id(text: str) -> bool:
    return "-" in text and ids.is_id(text)
