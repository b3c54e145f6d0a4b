"""Renews the leases of messages in hand, from a thread: a handler that blocks its event loop keeps its message.

Shared by the async and the sync half: it speaks to Redis over the blocking lane.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.keys import StreamKeys
from penstock.redis.blocking import Command
from penstock.redis.script_runner import ScriptRunner
from penstock.redis.scripts import script
from penstock.redis.settings import ConnectionSettings

logger = logging.getLogger("penstock.queue")


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


class LeaseKeeper:
    """A thread that renews leases when they are due.

    Guarantees: never tries beyond the end of a lease; tells, once, of a lease that is lost, that could not be renewed
    in time, or that is renewed no longer because its handler took too long.
    """

    def __init__(self, settings: ConnectionSettings, keys: StreamKeys, group: str, lease_s: float) -> None:
        # No command may outlast a third of the lease: then there is time for another try.
        patience_s = self._patience_s = max(0.05, lease_s / 3)
        settings = replace(
            settings,
            socket_timeout_s=min(settings.socket_timeout_s, patience_s),
            connect_timeout_s=min(settings.connect_timeout_s, patience_s),
        )
        self._stream, self._retries, self._group, self._lease_s = keys.stream, keys.retries(group), group, lease_s
        self._runner, self._script, self._hold_script = (
            ScriptRunner(settings, keys.stream),
            script("streams/renew"),
            script("streams/hold_vanished"),
        )
        self._leases: set[Lease] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed, self._process = False, os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether its thread is that of another process: of the parent of a forked one."""
        return self._process != os.getpid()

    def keep(self, lease: Lease) -> None:
        """Renew the lease from now on."""
        lease.due_at = time.monotonic() + lease.interval_s
        with self._changed:
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def leave(self, lease: Lease) -> None:
        """Renew it no longer; nobody is told anything of it from here on."""
        with self._changed:
            self._leases.discard(lease)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._runner.abort()

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            try:
                self._attend(due)
            except Exception:
                # Whatever it is: a thread that ends costs every lease from now on, and nobody would know why.
                logger.exception("the lease of %s was not renewed", due.entry_id)
            del due  # or the last message would live until the next one is due
        self._runner.close()

    def _next_due(self) -> Lease | None:
        with self._changed:
            while not self._is_closed:
                first = min(self._leases, key=lambda lease: lease.due_at, default=None)
                now = time.monotonic()
                if first is not None and first.due_at <= now:
                    return first
                self._changed.wait(None if first is None else first.due_at - now)
        return None

    def _attend(self, lease: Lease) -> None:
        now = time.monotonic()
        lease.due_at = now + lease.interval_s
        if now >= lease.longest_until:
            self._lose(lease, "the handler takes longer than max_processing_seconds: its lease is renewed no more")
            return
        if now >= lease.expires_at:
            self._lose(lease, "the lease could not be renewed before it ran out")
            return
        timeout_s = min(self._patience_s, lease.expires_at - now)
        try:
            refused = self._renew(lease, timeout_s)
        except PenstockError as error:
            self._not_renewed(lease, error)
            return
        if refused:
            self._lose(lease, "the message belongs to another consumer by now")
        else:
            lease.expires_at = now + self._lease_s  # from before the command: rather too early than too late
            if self._is_kept(lease):
                lease.on_renewed()

    def _renew(self, lease: Lease, timeout_s: float) -> list[bytes]:
        args: Command = (1, self._stream, self._group, lease.consumer, "", 0, lease.entry_id)
        refused, vanished = self._runner.run(self._script, args, timeout_s)
        if vanished:
            place = (2, self._stream, self._retries, self._group, lease.consumer)
            args = (*place, int(self._lease_s * 1000), lease.entry_id, 1)
            refused = self._runner.run(self._hold_script, args, timeout_s)
        return list(refused)

    def _not_renewed(self, lease: Lease, error: PenstockError) -> None:
        now = time.monotonic()
        if now >= lease.expires_at:
            self._lose(lease, f"the lease could not be renewed before it ran out: {error}")
        else:
            logger.warning("the lease of %s was not renewed: %s; trying again", lease.entry_id, error)
            lease.due_at = min(now + lease.interval_s / 4, lease.expires_at)

    def _is_kept(self, lease: Lease) -> bool:
        with self._changed:
            return lease in self._leases

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._changed:
            if lease not in self._leases:
                return  # settled while the command was under way
            self._leases.discard(lease)
        # In a thread of its own: what the user does about it must not cost the other leases.
        threading.Thread(target=_tell, args=(lease, reason), name="penstock-lease-lost", daemon=True).start()


def _tell(lease: Lease, reason: str) -> None:
    try:
        lease.on_lost(reason)
    except Exception:  # the event loop of the handler may be gone
        logger.exception("nobody could be told that the lease of %s is lost", lease.entry_id)
