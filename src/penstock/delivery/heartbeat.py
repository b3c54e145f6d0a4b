"""Renews leases from a thread of its own, so that a handler that blocks the event loop keeps its messages.

Shared by the async and the sync half: it speaks to Redis over the blocking lane.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from penstock.delivery.in_flight import InFlight
from penstock.errors import ConsumerNameTaken, GroupLost, PenstockError
from penstock.keys import StreamKeys
from penstock.redis.blocking import Command
from penstock.redis.script_runner import ScriptRunner
from penstock.redis.scripts import script
from penstock.redis.settings import ConnectionSettings

logger = logging.getLogger("penstock.streams")
_CHUNK = 500
_LEAST_PATIENCE_S = 1.0  # less would give up servers that are only slow


class Heartbeat:
    """A thread that renews, every interval, the leases of all messages that the consumer has in flight."""

    def __init__(
        self,
        settings: ConnectionSettings,
        keys: StreamKeys,
        group: str,
        consumer: str,
        interval_s: float,
        lease_ms: int,
        held: InFlight,
        on_lost: Callable[[list[str]], None],
        on_fenced: Callable[[], None],
        skip: Callable[[], set[str]],
    ) -> None:
        # A mute link is given up after an interval, a third of the lease at most: then there is time for another try.
        patience_s = max(_LEAST_PATIENCE_S, interval_s)
        settings = replace(
            settings,
            socket_timeout_s=min(settings.socket_timeout_s, patience_s),
            connect_timeout_s=min(settings.connect_timeout_s, patience_s),
        )
        self._runner = ScriptRunner(settings, keys.stream)
        self._keys, self._group, self._consumer = keys, group, consumer
        self._interval_s, self._lease_ms, self._held = interval_s, lease_ms, held
        self._on_lost, self._on_fenced, self._skip = on_lost, on_fenced, skip
        self.incarnation = ""
        self.name_ttl_ms = int(interval_s * 12_000)
        self._script, self._hold_script = script("streams/renew"), script("streams/hold_vanished")
        self._held_vanished: set[str] = set()  # their entries vanished, and their handlers run
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; it is not waited for longer than one command takes."""
        self._stop.set()
        thread, self._thread = self._thread, None
        self._runner.abort()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            try:
                self.beat()
                wait_s = self._interval_s
            except ConsumerNameTaken:
                self._on_fenced()
                break
            except GroupLost:
                pass  # the reader notices too, and creates the group again
            except PenstockError as error:
                if not self._stop.is_set():
                    logger.warning("leases of %s were not renewed: %s", self._consumer, error)
                wait_s = self._interval_s / 4
            except Exception:
                # Whatever it is: a heartbeat that stops costs every lease from now on, and nobody would know why.
                logger.exception("leases of %s were not renewed", self._consumer)
        self._runner.close()

    def beat(self) -> None:
        """Renew all leases once."""
        skipped = self._skip()
        ids = [item for item in self._held.unsettled_ids() if item not in skipped]
        if not ids and not self.incarnation:
            return
        vanished: list[str] = []
        for start in range(0, max(1, len(ids)), _CHUNK):
            refused, gone = self._renew(ids[start : start + _CHUNK])
            vanished += gone
            self._lose(refused)
        if vanished or self._held_vanished:
            self._lose(self._hold_vanished(vanished))

    def _lose(self, refused: list[str]) -> None:
        # Settled while the command was under way: not lost.
        lost = self._held.find(refused) if refused else None
        if lost:
            self._on_lost(list(lost))

    def _hold_vanished(self, vanished: list[str]) -> list[str]:
        settled = self._held_vanished.difference(vanished)
        keys = (self._keys.stream, self._keys.retries(self._group))
        ids = [*((item, 1) for item in vanished), *((item, 0) for item in settled)]
        args: Command = (
            len(keys), *keys, self._group, self._consumer, self._lease_ms, *(word for pair in ids for word in pair),
        )  # fmt: skip
        refused = [item.decode() for item in self._runner.run(self._hold_script, args)]
        self._held_vanished = set(vanished)
        return refused

    def _renew(self, ids: list[str]) -> tuple[list[str], list[str]]:
        keys = [self._keys.stream]
        if self.incarnation:
            # Only then: while its slot is on the move, a script with a second key that may not exist is refused.
            keys.append(self._keys.worker(self._group, self._consumer))
        args: Command = (len(keys), *keys, self._group, self._consumer, self.incarnation, self.name_ttl_ms, *ids)
        refused, vanished = self._runner.run(self._script, args)
        return [item.decode() for item in refused], [item.decode() for item in vanished]
