"""Renews the leases of all tasks that a queue object holds, from one thread, whatever lanes they are of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.delivery.heartbeat import Heartbeat
from penstock.errors import PenstockError
from penstock.keys import TaskKeys
from penstock.redis.settings import ConnectionSettings
from penstock.tasks.lanes import Lane
from penstock.tasks.tasks_in_flight import TaskInFlight, TasksInFlight

logger = logging.getLogger(__package__)  # by this name in both halves, which share the module


class TaskRenewal:
    """A thread that renews leases every interval: a handler that blocks the event loop keeps its tasks."""

    def __init__(
        self,
        settings: ConnectionSettings,
        keys: TaskKeys,
        group: str,
        consumer: str,
        held: TasksInFlight,
        interval_s: float,
        lease_ms: int,
        on_lost: Callable[[list[TaskInFlight]], None],
    ) -> None:
        self._settings, self._keys, self._group, self._consumer = settings, keys, group, consumer
        self._held, self._interval_s, self._lease_ms, self._on_lost = held, interval_s, lease_ms, on_lost
        self._heartbeats: dict[Lane, Heartbeat] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-renewal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it is not waited for longer than one command takes."""
        self._stop.set()
        for heartbeat in list(self._heartbeats.values()):
            heartbeat.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            wait_s = self._interval_s
            for lane in list(self._held.lanes):
                try:
                    self._heartbeat_of(lane).beat()
                except PenstockError as error:
                    if not self._stop.is_set():
                        logger.warning("leases of %s were not renewed: %s", self._consumer, error)
                    wait_s = self._interval_s / 4
                except Exception:
                    # Whatever it is: a heartbeat that stops costs every lease from now on, and nobody would know why.
                    logger.exception("leases of %s were not renewed", self._consumer)

    def _heartbeat_of(self, lane: Lane) -> Heartbeat:
        heartbeat = self._heartbeats.get(lane)
        if heartbeat is None:
            heartbeat = self._heartbeats[lane] = Heartbeat(
                self._settings, self._keys.tasks(lane.suffix), self._group, self._consumer, self._interval_s,
                self._lease_ms, self._held.of(lane), lambda ids: self._on_lost(self._held.lose(lane, ids)),
                lambda: None, set,
            )  # fmt: skip
        return heartbeat
