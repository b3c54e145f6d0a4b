"""The leases of messages in hand, each with an end of its own.

Shared by the async and the sync half: it speaks to Redis over the blocking lane.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.delivery.leases import Held, Renewable, Renewal, checked, tell
from penstock.errors import PenstockError
from penstock.keys import StreamKeys
from penstock.redis.settings import ConnectionSettings

logger = logging.getLogger("penstock.queue")
_LEAST_PATIENCE_S = 0.05


@dataclass(eq=False, slots=True)
class Lease:
    """One message in hand; times are those of time.monotonic()."""

    consumer: str
    entry_id: str
    interval_s: float
    expires_at: float
    longest_until: float  # a handler that hangs is not waited for any longer
    on_renewed: Callable[[], None]
    on_lost: Callable[[str], None]
    due_at: float = 0.0


class QueueLeases(Renewable):
    """Renews leases when they are due.

    Guarantees: never tries beyond the end of a lease; tells, once, of a lease that is lost, that could not be renewed
    in time, or that is renewed no longer because its handler took too long.
    """

    def __init__(self, settings: ConnectionSettings, keys: StreamKeys, group: str, lease_s: float) -> None:
        # No command may outlast a third of the lease: then there is time for another try.
        patience_s = max(_LEAST_PATIENCE_S, lease_s / 3)
        super().__init__(settings, keys.stream, lease_s, patience_s, f"leases of {keys.stream}", logger)
        self._keys, self._group, self._lease_s = keys, group, lease_s
        self._leases: set[Lease] = set()
        self._tried: list[Lease] = []

    def keep(self, lease: Lease) -> None:
        """Renew the lease from now on."""
        lease.due_at = time.monotonic() + lease.interval_s
        thread = self._thread
        with thread.changed:
            if not thread.has(self):
                self._leases.clear()  # closed since, or those of the process that this one is forked from
                self.start()
            self._leases.add(lease)
            if lease.due_at < thread.wakes_s:
                thread.changed.notify_all()

    def leave(self, lease: Lease) -> None:
        """Renew it no longer; nobody is told anything of it from here on."""
        with self._thread.changed:
            self._leases.discard(lease)

    @property
    def due_s(self) -> float:
        """When the first lease is due."""
        return min((lease.due_at for lease in self._leases), default=float("inf"))

    @property
    def early_s(self) -> float:
        """Each lease has a time of its own."""
        return 0.0

    @property
    def timeout_s(self) -> float:
        """How long replies may take: not beyond the end of a lease."""
        left_s = min((lease.expires_at for lease in self._tried), default=float("inf")) - time.monotonic()
        return max(_LEAST_PATIENCE_S, min(self._patience_s, left_s))

    def renew(self) -> Renewal:
        """Renew what is due."""
        now = time.monotonic()
        with self._thread.changed:
            due = [lease for lease in self._leases if lease.due_at <= now]
        self._tried = tried = [lease for lease in due if self._may_try(lease, now)]
        held = {it: Held(self._keys, self._group, it.consumer, [it.entry_id]) for it in tried}
        replies = checked((yield [one.renew() for one in held.values()]))
        lost = {lease for lease, (refused, _) in zip(tried, replies, strict=True) if refused}
        vanished = [lease for lease, (_, gone) in zip(tried, replies, strict=True) if gone]
        replies = checked((yield [held[lease].hold(int(self._lease_s * 1000)) for lease in vanished]))
        lost |= {lease for lease, refused in zip(vanished, replies, strict=True) if refused}
        self._tried = []  # or the last message would live until the next one is due
        for lease in lost:
            self._lose(lease, "the message belongs to another consumer by now")
        renewed = [lease for lease in tried if lease not in lost]
        for lease in renewed:
            lease.expires_at = now + self._lease_s  # from before the command: rather too early than too late
        if renewed:
            tell(self._tell_renewed, renewed)

    def _may_try(self, lease: Lease, now: float) -> bool:
        lease.due_at = now + lease.interval_s
        if now >= lease.longest_until:
            self._lose(lease, "the handler takes longer than max_processing_seconds: its lease is renewed no more")
        elif now >= lease.expires_at:
            self._lose(lease, "the lease could not be renewed before it ran out")
        else:
            return True
        return False

    def failed(self, error: Exception) -> None:
        """Take note that leases were not renewed."""
        tried, self._tried = self._tried, []
        if not isinstance(error, PenstockError):
            super().failed(error)
            return
        now = time.monotonic()
        for lease in tried:
            if now >= lease.expires_at:
                self._lose(lease, f"the lease could not be renewed before it ran out: {error}")
            else:
                logger.warning("the lease of %s was not renewed: %s; trying again", lease.entry_id, error)
                lease.due_at = min(now + lease.interval_s / 4, lease.expires_at)

    def _tell_renewed(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease in self._leases:
                lease.on_renewed()

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._thread.changed:
            if lease not in self._leases:
                return  # settled while the command was under way
            self._leases.discard(lease)
        tell(lease.on_lost, reason)
