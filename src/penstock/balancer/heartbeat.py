"""Keeps the locks of all streams that are owned or asked for, from a thread of its own: whatever the application does.

Shared by the async and the sync half: it speaks to Redis over the blocking lane.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.balancer.config import BalancerConfig
from penstock.balancer.holdings import Holdings, Ownership, PendingClaim
from penstock.balancer.messages import LBSInfo
from penstock.errors import PenstockError, ReadOnlyServer
from penstock.keys import BalancerKeys
from penstock.redis.blocking import Command, Connection, Reply
from penstock.redis.blocking_locator import Locator
from penstock.redis.scripts import Script, script
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import Redirected, ScriptMissing

_CHUNK = 500


class Heartbeat:
    """A thread that, every interval and in one round trip, extends all locks and refreshes their pending entries."""

    def __init__(
        self,
        settings: ConnectionSettings,
        keys: BalancerKeys,
        me: str,
        config: BalancerConfig,
        holdings: Holdings,
        on_lost: Callable[[list[Ownership]], None],
    ) -> None:
        self._settings, self._keys, self._me, self._config = settings, keys, me, config
        self._holdings, self._on_lost = holdings, on_lost
        self._beat_script, self._extend_script = script("balancer/beat"), script("balancer/extend")
        self._locator = Locator(settings)
        self._connections: dict[Host, Connection] = {}
        self._begun = self._ended = 0
        self._starting = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-balancer", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread; it is not waited for longer than one command takes."""
        self._stop.set()
        self._hang_up()
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def _run(self) -> None:
        interval_s, due_s = self._config.heartbeat_interval_ms / 1000, time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            # Measured from beat to beat: the time that a beat takes does not put off the next one.
            due_s = max(due_s + interval_s, time.monotonic() + interval_s / 2)
            try:
                self.beat()
            except PenstockError as error:
                if not self._stop.is_set():
                    self._config.logger.warning("locks of %s were not extended: %s", self._me, error)
                self._hang_up()
                due_s = time.monotonic() + interval_s / 4
            except Exception:
                # Whatever it is: a heartbeat that stops costs every stream from now on, and nobody would know why.
                self._config.logger.exception("locks of %s were not extended", self._me)
        self._hang_up()
        self._locator.close()

    def beat(self) -> None:
        """Extend all locks once, also those of claims under way, and tell which streams are lost."""
        self._begun += 1
        try:
            self._beat(*self._holdings.beating())
        finally:
            self._ended = self._begun

    def is_under_way(self, number: int) -> bool:
        """Tell whether the beat of a number has not ended yet."""
        return self._ended < number

    @property
    def begun(self) -> int:
        """The number of the latest beat."""
        return self._begun

    def _beat(self, owned: list[Ownership], claims: list[PendingClaim]) -> None:
        sent_s = time.monotonic()
        held = [ownership.payload for ownership in owned] + [claim.payload for claim in claims]
        is_cluster = self._settings.kind == "cluster"
        refused = self._beat_in_cluster(held, len(owned)) if is_cluster else self._beat_at_once(held, len(owned))
        for claim in claims:  # one that is refused is not granted, or not yet
            if claim.payload.id_in_lbs not in refused:
                claim.hold(sent_s, self._config.lease_ms)
        # Finished or handed over while the command was under way: not lost.
        lost = [item for item in owned if item.payload.id_in_lbs in refused and self._holdings.lose(item)]
        self._config.metrics_recorder.record_locks_extended(len(held) - len(refused), len(lost))
        if lost:
            self._on_lost(lost)

    def _beat_at_once(self, held: list[LBSInfo], owned: int) -> set[str]:
        commands: list[Command] = []
        for start in range(0, max(1, len(held)), _CHUNK):
            chunk = held[start : start + _CHUNK]
            commands.append(self._beat_args(chunk, [info.lock for info in chunk], owned, owned - start))
        return _ids(self._run_scripts(self._keys.stream, self._beat_script, commands))

    def _beat_args(self, chunk: Sequence[LBSInfo], locks: Sequence[str], owned: int, owned_from_here: int) -> Command:
        config, keys = self._config, (self._keys.stream, self._keys.peers, *locks)
        flags = (
            self._keys.group, self._me, config.lease_ms, config.refreshed_idle_ms, owned, config.capacity or 0,
            config.peer_ttl_ms, owned_from_here,
        )  # fmt: skip
        return (len(keys), *keys, *flags, *(info.id_in_lbs for info in chunk))

    def _beat_in_cluster(self, held: list[LBSInfo], owned: int) -> set[str]:
        # The locks lie on any node: they are extended node by node, then the entries of those that are ours.
        by_host: dict[Host, list[LBSInfo]] = {}
        for info in held:
            by_host.setdefault(self._locator.locate(info.lock), []).append(info)
        may_take = {info.id_in_lbs for info in held[:owned]}
        refused: set[str] = set()
        for on_host in by_host.values():
            for info, reply in zip(on_host, self._extend(on_host, may_take=False), strict=True):
                is_ours = reply == 1 or (reply == 0 and info.id_in_lbs in may_take and self._take_again(info))
                refused |= set() if is_ours else {info.id_in_lbs}
        mine = [info for info in held if info.id_in_lbs not in refused]
        owned = len(may_take - refused)
        chunks = [mine[start : start + _CHUNK] for start in range(0, max(1, len(mine)), _CHUNK)]
        commands = [self._beat_args(chunk, (), owned, 0) for chunk in chunks]
        return refused | _ids(self._run_scripts(self._keys.stream, self._beat_script, commands))

    def _extend(self, on_host: Sequence[LBSInfo], *, may_take: bool) -> list[Reply]:
        me, ttl_ms = self._me, self._config.lease_ms
        commands: list[Command] = [(1, info.lock, me, ttl_ms, int(may_take)) for info in on_host]
        return self._run_scripts(on_host[0].lock, self._extend_script, commands)

    def _take_again(self, info: LBSInfo) -> bool:
        # A lock that ran out may be taken again only while the entry is pending with us.
        key, entry_id = self._keys.stream, info.id_in_lbs
        is_ours = self._open(key).call("XPENDING", key, self._keys.group, entry_id, entry_id, 1, self._me)
        return bool(is_ours) and self._extend([info], may_take=True)[0] == 1

    def _run_scripts(self, key: str, wanted: Script, commands: Sequence[Command]) -> list[Reply]:
        connection = self._open(key)
        timeout_s = self._config.lease_ms / 2000  # a mute link is given up while the locks still hold
        replies = connection.pipeline([("EVALSHA", wanted.sha, *args) for args in commands], timeout_s)
        if any(isinstance(reply, ScriptMissing) for reply in replies):
            connection.call("SCRIPT", "LOAD", wanted.source)
            replies = connection.pipeline([("EVALSHA", wanted.sha, *args) for args in commands], timeout_s)
        for reply in replies:
            if isinstance(reply, Redirected | ReadOnlyServer):
                self._locator.refresh()
            if isinstance(reply, PenstockError):
                raise reply
        return replies

    def _open(self, key: str) -> Connection:
        host = self._locator.locate(key)
        connection = self._connections.get(host)
        if connection is None or not connection.is_open:
            connection = self._connections[host] = self._locator.connect(host)
        return connection

    def _hang_up(self) -> None:
        for connection in list(self._connections.values()):
            connection.abort()
        with suppress(PenstockError):
            self._locator.refresh()


def _ids(replies: Sequence[Reply]) -> set[str]:
    return {entry_id.decode() for reply in replies for entry_id in reply}
