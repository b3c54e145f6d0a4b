"""Extends the locks of all streams that are owned or being claimed, from a thread, even if the application blocks.

Shared by the async and sync APIs; uses the blocking transport.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence

from penstock.balancer.config import BalancerConfig
from penstock.balancer.holdings import Holdings, Ownership
from penstock.balancer.messages import LBSInfo
from penstock.delivery.leases import Renewable, Renewal, call_in_thread
from penstock.errors import PermissionDenied, WrongType
from penstock.keys import BalancerKeys
from penstock.redis.blocking import Reply
from penstock.redis.packing import Command
from penstock.redis.scripts import Call, script
from penstock.redis.settings import ConnectionSettings
from penstock.redis.translate import checked

_CHUNK = 500
_OUT_OF_REACH = PermissionDenied | WrongType


class Heartbeat(Renewable):
    """Extends all locks and refreshes their pending entries every interval, in one round trip."""

    def __init__(
        self,
        settings: ConnectionSettings,
        keys: BalancerKeys,
        me: str,
        config: BalancerConfig,
        holdings: Holdings,
        on_lost: Callable[[list[Ownership]], None],
    ) -> None:
        patience_s = config.lease_ms / 2000  # time out while the locks are still held
        super().__init__(
            settings, keys.stream, config.heartbeat_interval_ms / 1000, patience_s, f"locks of {me}", config.logger
        )
        self._keys, self._consumer_id, self._config = keys, me, config
        self._holdings, self._on_lost = holdings, on_lost
        self._is_cluster = settings.kind == "cluster"
        self.begun = self._ended = 0  # the number of the latest heartbeat
        self._is_over = False

    def start(self, *, at_once: bool = False) -> None:
        """Start, unless it was stopped: a late claim must not hold a stream forever."""
        with self._thread.changed:
            if not self._is_over:
                super().start(at_once=at_once)

    def stop(self) -> None:
        """Stop for good."""
        with self._thread.changed:
            self._is_over = True
        super().stop()

    def is_under_way(self, number: int) -> bool:
        """Return whether the heartbeat of a number has not ended yet."""
        return self._ended < number

    def renew(self) -> Renewal:
        """Extend all locks once, also those of claims under way, and report lost streams."""
        self.begun += 1
        try:
            owned, claims = self._holdings.beating()
            sent_s = time.monotonic()
            held = [ownership.payload for ownership in owned] + [claim.payload for claim in claims]
            refused = yield from (self._in_cluster if self._is_cluster else self._at_once)(held, len(owned))
            for claim in claims:  # one that is refused is not granted, or not yet
                if claim.payload.id_in_lbs not in refused:
                    claim.hold(sent_s, self._config.lease_ms)
            # Finished or handed over while the command was under way: not lost.
            lost = [item for item in owned if item.payload.id_in_lbs in refused and self._holdings.lose(item)]
            self._config.metrics_recorder.record_locks_extended(len(held) - len(refused), len(lost))
            if lost:
                call_in_thread(self._on_lost, lost)
        finally:
            self._ended = self.begun

    def _at_once(self, held: list[LBSInfo], owned: int) -> Generator[list[Call], list[Reply], set[str]]:
        # Each claim by itself: an entry may name a stream whose lock this consumer cannot use, which must not keep the
        # locks of its neighbours from being extended.
        chunks = [held[start : min(start + _CHUNK, owned)] for start in range(0, max(1, owned), _CHUNK)]
        calls = [self._beat(chunk, [info.lock for info in chunk], owned, len(chunk)) for chunk in chunks]
        claims = held[owned:]
        replies = yield calls + [self._beat([info], [info.lock], owned, 0) for info in claims]
        own, theirs = replies[: len(calls)], replies[len(calls) :]
        refused = {
            info.id_in_lbs for info, reply in zip(claims, theirs, strict=True) if isinstance(reply, _OUT_OF_REACH)
        }
        return refused | _ids([*own, *(reply for reply in theirs if not isinstance(reply, _OUT_OF_REACH))])

    def _beat(self, chunk: Sequence[LBSInfo], locks: Sequence[str], owned: int, owned_from_here: int) -> Call:
        config, keys = self._config, (self._keys.stream, self._keys.peers, *locks)
        flags = (
            self._keys.group, self._consumer_id, config.lease_ms, config.refreshed_idle_ms, owned, config.capacity or 0,
            config.peer_ttl_ms, owned_from_here,
        )  # fmt: skip
        args: Command = (len(keys), *keys, *flags, *(info.id_in_lbs for info in chunk))
        return Call(self._keys.stream, script("balancer/beat"), args)

    def _in_cluster(self, held: list[LBSInfo], owned: int) -> Generator[list[Call], list[Reply], set[str]]:
        # Locks may be on any node: extend them node by node, then refresh the entries of those that are ours.
        extended = yield [self._extend(info, may_take=False) for info in held]
        # As in _at_once, the lock of a claim may be out of reach: it is not ours then.
        claimed = [-1 if isinstance(reply, _OUT_OF_REACH) else reply for reply in extended[owned:]]
        replies = checked([*extended[:owned], *claimed])
        kept = {info.id_in_lbs for info, reply in zip(held, replies, strict=True) if reply == 1}
        # An expired lock may be taken again only while the entry is pending with us.
        run_out = [info for info, reply in zip(held[:owned], replies, strict=False) if reply == 0]
        replies = checked((yield [self._pending(info) for info in run_out]))
        pending = [info for info, rows in zip(run_out, replies, strict=True) if rows]
        replies = checked((yield [self._extend(info, may_take=True) for info in pending]))
        kept |= {info.id_in_lbs for info, reply in zip(pending, replies, strict=True) if reply == 1}
        mine = [info for info in held if info.id_in_lbs in kept]
        owned = sum(info.id_in_lbs in kept for info in held[:owned])
        chunks = [mine[start : start + _CHUNK] for start in range(0, max(1, len(mine)), _CHUNK)]
        replies = yield [self._beat(chunk, (), owned, 0) for chunk in chunks]
        return {info.id_in_lbs for info in held if info.id_in_lbs not in kept} | _ids(replies)

    def _extend(self, info: LBSInfo, *, may_take: bool) -> Call:
        args = (1, info.lock, self._consumer_id, self._config.lease_ms, int(may_take))
        return Call(info.lock, script("balancer/extend"), args)

    def _pending(self, info: LBSInfo) -> Call:
        entry_id = info.id_in_lbs
        command = ("XPENDING", self._keys.stream, self._keys.group, entry_id, entry_id, 1, self._consumer_id)
        return Call(self._keys.stream, None, command)


def _ids(replies: Sequence[Reply]) -> set[str]:
    return {entry_id.decode() for reply in checked(replies) for entry_id in reply}
