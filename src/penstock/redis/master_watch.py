"""Watches which servers are masters, for all connections of this process to one Sentinel service or cluster.

A server that was frozen or cut off while a replica was promoted still believes that it is the master: it answers reads
and accepts writes that are lost once it is demoted. A server that is still frozen accepts connections and never
replies. Nothing on the connection shows either. Only the Sentinels, or the other nodes of the cluster, know, so they
are polled every second while there are connections.

Shared by the async and sync APIs.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from penstock.errors import ConnectionFailed, PenstockError
from penstock.redis.blocking import Connection, connect
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.topology import Answer, Directory, Masters, directory_of, newest, slot_of

logger = logging.getLogger("penstock.redis")
_POLL_S = 1.0
_RECENT_S = 1.0  # a failure this soon after a change may be due to it


class Abortable(Protocol):
    """Something that is useful only while its server is a master: a connection, or an attempt to open one."""

    @property
    def is_open(self) -> bool:
        """Whether it is still in use."""

    def abort_from_outside(self) -> None:
        """End it, from any thread."""


class _Lookup:
    """A caller that waits for the answer to a poll that starts from now on."""

    def __init__(self, nodes: set[Host]) -> None:
        self.found: Future[Masters] = Future()
        self.awaited = nodes
        self.errors: dict[Host, PenstockError] = {}


class MasterWatch:
    """The masters according to a directory, which a few threads poll while any connection depends on it."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.reset()

    def reset(self) -> None:
        """Start over: a forked process has no threads."""
        self.masters: Masters | None = None  # None = unknown: nothing is being polled
        self._changed_s = -math.inf  # when the masters changed last
        self._known: Answer | None = None
        self._answers: dict[Host, Answer] = {}
        self._replaced: set[Host] = set()
        self._abortables: list[tuple[Host, weakref.ref[Abortable]]] = []
        self._lookups: list[_Lookup] = []
        self._waiting: list[Callable[[], None]] = []
        self._polled: set[Host] = set()  # nodes that a thread polls now
        self._failures: dict[Host, int] = {}
        self._run = 0  # the threads of an earlier run end by themselves
        self._is_running = False
        self._changed = threading.Condition()

    def ask(self) -> Future[Masters]:
        """Return the masters according to a poll that starts from now on."""
        with self._changed:
            self._start()
            lookup = _Lookup(self._nodes())
            self._lookups.append(lookup)
            self._changed.notify_all()
        return lookup.found

    def abort_when_replaced(self, host: Host, dependent: Abortable) -> None:
        """Abort it as soon as another server replaces this master; raise MasterReplaced if one already has."""
        with self._changed:
            if host in self._replaced:
                raise MasterReplaced(host)
            self._start()
            self._abortables.append((host, weakref.ref(dependent)))

    @contextmanager
    def notifying(self, callback: Callable[[], None]) -> Iterator[bool]:
        """Call a function, from another thread, when the masters change; yield whether they changed a moment ago."""
        with self._changed:
            self._start()
            self._waiting.append(callback)
            has_just_changed = time.monotonic() < self._changed_s + _RECENT_S
        try:
            yield has_just_changed
        finally:
            with self._changed:
                self._waiting.remove(callback)

    def _nodes(self) -> set[Host]:
        return {*self.directory.settings.hosts, *(self._known.nodes if self._known is not None else ())}

    def _start(self) -> None:
        # Called before anything is registered, with the lock held, for which the threads wait.
        if self._is_running:
            return
        self._is_running, self._run = True, self._run + 1
        try:
            for _ in range(self.directory.max_polled):
                threading.Thread(target=self._poll, args=(self._run,), name="penstock-masters", daemon=True).start()
        except RuntimeError:  # no more threads: the next call tries again
            self._end()
            raise

    def _poll(self, run: int) -> None:
        node: Host | None = None
        connection: Connection | None = None
        wait_s = 0.0
        while (turn := self._next(run, node, wait_s)) is not None:
            wait_s = _POLL_S
            lookups, chosen = turn
            if chosen != node and connection is not None:
                connection.close()
                connection = None
            node = chosen
            if node is None:
                continue  # other threads poll all known nodes
            settings = replace(self.directory.settings, hosts=(node,))
            try:
                if connection is None or not connection.is_open:
                    connection = connect(settings, node)
                answer: Answer | PenstockError = self.directory.answer(
                    node, connection.pipeline(self.directory.questions)
                )
            except PenstockError as error:
                answer = error
            except Exception as error:
                # Keep polling, whatever it is: otherwise a stale master would go unnoticed from now on.
                logger.exception("cannot ask %s for the current master", settings.where)
                answer = ConnectionFailed(repr(error))
            if not self._record_answer(run, node, answer, lookups):
                break
            if isinstance(answer, PenstockError):
                node = None
        if connection is not None:
            connection.close()

    def _next(self, run: int, node: Host | None, wait_s: float) -> tuple[list[_Lookup], Host | None] | None:
        """Wait for the next poll; return the lookups that it answers and the node to poll; None = the run has ended.

        A thread stays with its node while that replies, then takes the one with the fewest failures that is not polled.
        """
        with self._changed:
            self._changed.wait_for(lambda: run != self._run or self._is_awaited(node), wait_s)
            if run != self._run:
                return None
            nodes = self._nodes()
            if node not in nodes:
                self._polled.discard(node)
                free = sorted(nodes - self._polled, key=lambda host: (self._failures.get(host, 0), random.random()))
                node = free[0] if free else None
                self._polled.update(free[:1])
            return list(self._lookups), node  # later lookups get a later answer

    def _is_awaited(self, node: Host | None) -> bool:
        free = {node} if node is not None else self._nodes() - self._polled
        return any(lookup.awaited & free for lookup in self._lookups)

    def _record_answer(self, run: int, node: Host, answer: Answer | PenstockError, lookups: list[_Lookup]) -> bool:
        """Record a reply and pass it on; return whether to keep polling."""
        with self._changed:
            if run != self._run:
                return False
            if isinstance(answer, Answer):
                self._answers[node] = answer
                self._failures.pop(node, None)
            else:
                self._answers.pop(node, None)
                self._polled.discard(node)
                self._failures[node] = self._failures.get(node, 0) + 1
            dependents, callbacks = self._update_masters()
            known = self._known
            found = self.masters if isinstance(answer, Answer) and known is not None and not known.is_down else None
            answered = [lookup for lookup in lookups if found or self._is_the_last(lookup, node, answer)]
            self._lookups = [lookup for lookup in self._lookups if lookup not in answered and not lookup.found.done()]
            # A caller that was answered is about to connect.
            is_needed = bool(self._abortables or self._lookups or self._waiting or lookups)
            if not is_needed:
                self._end()
        for dependent in dependents:
            dependent.abort_from_outside()
        for lookup in answered:
            self._resolve(lookup, found)
        for callback in callbacks:
            callback()
        return is_needed

    def _update_masters(self) -> tuple[list[Abortable], list[Callable[[], None]]]:
        # Update the masters; return what depends on replaced ones, and the functions to call after a change.
        before, polled = self._known, min(self.directory.max_polled, len(self._nodes()))
        self._known = known = newest(self._answers.values(), before, polled)
        masters = known.masters if known is not None else None
        if self.masters != masters:  # an equal map stays the same object, which MOVED replies refer to
            self.masters = masters
        callbacks: list[Callable[[], None]] = []
        if before is not None and known is not None and before.masters != known.masters:
            self._changed_s = time.monotonic()
            callbacks = list(self._waiting)
            gone, new = before.masters.hosts - known.masters.hosts, known.masters.hosts - before.masters.hosts
            self._replaced = (self._replaced | gone) - known.masters.hosts
            if gone or new:
                logger.warning(
                    "%s: masters changed: removed %s; added %s", self.directory.name, *map(_text, (gone, new))
                )
        registered = [(host, reference, reference()) for host, reference in self._abortables]
        is_open = [
            (host, reference, dependent)
            for host, reference, dependent in registered
            if dependent is not None and dependent.is_open
        ]
        self._abortables = [(host, reference) for host, reference, _ in is_open if host not in self._replaced]
        return [dependent for host, _, dependent in is_open if host in self._replaced], callbacks

    @staticmethod
    def _is_the_last(lookup: _Lookup, node: Host, answer: Answer | PenstockError) -> bool:
        lookup.awaited.discard(node)
        if isinstance(answer, PenstockError):
            lookup.errors[node] = answer
        return not lookup.awaited

    def _resolve(self, lookup: _Lookup, found: Masters | None) -> None:
        with suppress(InvalidStateError):  # the caller has given up
            if found is not None:
                lookup.found.set_result(found)
            else:
                lookup.found.set_exception(self.directory.not_found(lookup.errors.values()))

    def _end(self) -> None:
        # The last answer is kept, so that the next run notices a failover that happened in between.
        self._is_running, self._run, self.masters = False, self._run + 1, None
        self._answers.clear()
        self._polled.clear()
        self._changed.notify_all()


def _text(hosts: frozenset[Host]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in sorted(hosts)) or "none"


class Routes:
    """The part of a locator that both APIs share: which server has a key, and whether to look that up again."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings, self._watch = settings, watch_of(settings)
        self._place = settings.hosts[0] if settings.hosts else ("", 0)  # of a single server
        self._refreshed = self._answered = 0  # a look-up is due while they differ
        self._moved: dict[int, Host] = {}  # by slot, from MOVED replies
        self._moved_since: Masters | None = None

    def refresh(self) -> None:
        """Look the masters up again for the next key."""
        self._refreshed += 1
        self._moved.clear()

    def move(self, slot: int, host: Host) -> None:
        """Record a MOVED reply: this server has the slot until a new map arrives."""
        self._forget_moves(self._watch.masters if self._watch is not None else None)
        self._moved[slot] = host

    def _forget_moves(self, masters: Masters | None) -> None:
        if masters is not self._moved_since:
            self._moved, self._moved_since = {}, masters

    def _fresh(self, watch: MasterWatch) -> Masters | None:
        return watch.masters if self._refreshed == self._answered else None

    def _owner(self, masters: Masters, key: str) -> Host:
        self._forget_moves(masters)
        found = (self._moved.get(slot_of(key)) if self._moved else None) or masters.of(key)
        if found is None:
            self.refresh()
            raise ConnectionFailed(f"no node of the cluster at {self._settings.where} serves {key!r}")
        return found


_watches: weakref.WeakSet[MasterWatch] = weakref.WeakSet()
_making = threading.Lock()


def watch_of(settings: ConnectionSettings) -> MasterWatch | None:
    """Return the watch of this process for a service or cluster; None for a single server."""
    directory = directory_of(settings)
    if directory is None:
        return None
    with _making:
        for watch in _watches:
            if watch.directory == directory:
                return watch
        made = MasterWatch(directory)
        _watches.add(made)
        return made


class MasterReplaced(ConnectionFailed):
    """The server is no longer a master; the next try finds the promoted one."""

    def __init__(self, host: Host) -> None:
        super().__init__(f"Redis at {host[0]}:{host[1]} is no longer a master; another server was promoted")


def _after_fork() -> None:
    global _making  # noqa: PLW0603 (somebody may have held it)
    _making = threading.Lock()
    for watch in _watches:
        watch.reset()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_after_fork)
