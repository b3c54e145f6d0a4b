"""Watches which servers are masters, for all connections of this process behind the same Sentinels or in one cluster.

A server that was frozen or cut off while another was promoted still takes itself for the master: it answers reads and
accepts writes, which are thrown away once somebody gets through to it; one that stands still accepts connections and
answers nothing. Nothing on the connection says so. Only the Sentinels, or the other nodes of the cluster, know, so they
are asked every second, as long as there are connections.

Shared by the async and the sync half.
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
_RECENT_S = 1.0  # so long after a change a failure may be due to it


class Tied(Protocol):
    """What is of use only while its server is a master: a connection, or the attempt to open one."""

    @property
    def is_open(self) -> bool:
        """Whether it is still in use."""

    def abort_from_outside(self) -> None:
        """End it, from any thread."""


class _Lookup:
    """Somebody who waits for an answer that is given from now on."""

    def __init__(self, nodes: set[Host]) -> None:
        self.found: Future[Masters] = Future()
        self.awaited = nodes
        self.errors: dict[Host, PenstockError] = {}


class MasterWatch:
    """The masters that a directory names; a few threads ask it while anything is tied to one of them."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.reset()

    def reset(self) -> None:
        """Begin anew: in a forked process there are no threads."""
        self.masters: Masters | None = None  # None = unknown, and nobody watches
        self._changed_s = -math.inf  # when others became masters
        self._known: Answer | None = None
        self._answers: dict[Host, Answer] = {}
        self._replaced: set[Host] = set()
        self._ties: list[tuple[Host, weakref.ref[Tied]]] = []
        self._lookups: list[_Lookup] = []
        self._waiting: list[Callable[[], None]] = []
        self._asked: set[Host] = set()  # each by a thread of its own
        self._failures: dict[Host, int] = {}
        self._run = 0  # the number of the threads that ask
        self._is_running = False
        self._changed = threading.Condition()

    def ask(self) -> Future[Masters]:
        """Have somebody asked now."""
        with self._changed:
            lookup = _Lookup(self._nodes())
            self._lookups.append(lookup)
            self._start()
            self._changed.notify_all()
        return lookup.found

    def tie(self, host: Host, tied: Tied) -> None:
        """Abort it as soon as the server is a master no more; raise ConnectionFailed if it is none already."""
        with self._changed:
            if host in self._replaced:
                raise replaced(host)
            self._ties.append((host, weakref.ref(tied)))
            self._start()

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[bool]:
        """Call a function, from another thread, when others become masters; yield whether some have just done so."""
        with self._changed:
            self._waiting.append(tell)
            self._start()
            has_just_changed = time.monotonic() < self._changed_s + _RECENT_S
        try:
            yield has_just_changed
        finally:
            with self._changed:
                self._waiting.remove(tell)

    def _nodes(self) -> set[Host]:
        return {*self.directory.settings.hosts, *(self._known.nodes if self._known is not None else ())}

    def _start(self) -> None:
        if self._is_running:
            return
        self._is_running, self._run = True, self._run + 1
        for _ in range(self.directory.askers):
            threading.Thread(target=self._poll, args=(self._run,), name="penstock-masters", daemon=True).start()

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
                continue  # others ask all that are known
            settings = replace(self.directory.settings, hosts=(node,))
            try:
                if connection is None or not connection.is_open:
                    connection = connect(settings, node)
                said: Answer | PenstockError = self.directory.answer(
                    node, connection.pipeline(self.directory.questions)
                )
            except PenstockError as error:
                said = error
            except Exception as error:
                # Whatever it is: nobody would notice a stale master from now on.
                logger.exception("%s cannot be asked for the master", settings.where)
                said = ConnectionFailed(repr(error))
            if not self._heard(run, node, said, lookups):
                break
            if isinstance(said, PenstockError):
                node = None
        if connection is not None:
            connection.close()

    def _next(self, run: int, node: Host | None, wait_s: float) -> tuple[list[_Lookup], Host | None] | None:
        """Wait until somebody shall be asked; return who waits for the answer and whom to ask, None = the run is over.

        The same one as long as it answers, else one that nobody asks and that failed least.
        """
        with self._changed:
            self._changed.wait_for(lambda: run != self._run or self._is_awaited(node), wait_s)
            if run != self._run:
                return None
            nodes = self._nodes()
            if node not in nodes:
                self._asked.discard(node)
                free = sorted(nodes - self._asked, key=lambda host: (self._failures.get(host, 0), random.random()))
                node = free[0] if free else None
                self._asked.update(free[:1])
            return list(self._lookups), node  # whoever comes later gets a later answer

    def _is_awaited(self, node: Host | None) -> bool:
        free = {node} if node is not None else self._nodes() - self._asked
        return any(lookup.awaited & free for lookup in self._lookups)

    def _heard(self, run: int, node: Host, said: Answer | PenstockError, lookups: list[_Lookup]) -> bool:
        """Take note of what was said; return whether there is more to ask."""
        with self._changed:
            if run != self._run:
                return False
            if isinstance(said, Answer):
                self._answers[node] = said
                self._failures.pop(node, None)
            else:
                self._answers.pop(node, None)
                self._asked.discard(node)
                self._failures[node] = self._failures.get(node, 0) + 1
            left, told = self._believe()
            known = self._known
            found = self.masters if isinstance(said, Answer) and known is not None and not known.is_down else None
            answered = [lookup for lookup in lookups if found or self._is_the_last(lookup, node, said)]
            self._lookups = [lookup for lookup in self._lookups if lookup not in answered and not lookup.found.done()]
            # Whoever was answered is about to connect.
            is_needed = bool(self._ties or self._lookups or self._waiting or lookups)
            if not is_needed:
                self._end()
        for tied in left:
            tied.abort_from_outside()
        for lookup in answered:
            self._tell(lookup, found)
        for tell in told:
            tell()
        return is_needed

    def _believe(self) -> tuple[list[Tied], list[Callable[[], None]]]:
        # Take note of who are masters now; return what is tied to others, and who wants to know of the change.
        before, asked = self._known, min(self.directory.askers, len(self._nodes()))
        self._known = known = newest(self._answers.values(), before, asked)
        masters = known.masters if known is not None else None
        if self.masters != masters:  # the same object as long as it says the same
            self.masters = masters
        told: list[Callable[[], None]] = []
        if before is not None and known is not None and before.masters != known.masters:
            self._changed_s = time.monotonic()
            told = list(self._waiting)
            gone, new = before.masters.hosts - known.masters.hosts, known.masters.hosts - before.masters.hosts
            self._replaced = (self._replaced | gone) - known.masters.hosts
            if gone or new:
                logger.warning(
                    "%s: no longer a master: %s; a new one: %s", self.directory.name, *map(_text, (gone, new))
                )
        ties = [(host, reference, reference()) for host, reference in self._ties]
        is_open = [(host, reference, tied) for host, reference, tied in ties if tied is not None and tied.is_open]
        self._ties = [(host, reference) for host, reference, _ in is_open if host not in self._replaced]
        return [tied for host, _, tied in is_open if host in self._replaced], told

    @staticmethod
    def _is_the_last(lookup: _Lookup, node: Host, said: Answer | PenstockError) -> bool:
        lookup.awaited.discard(node)
        if isinstance(said, PenstockError):
            lookup.errors[node] = said
        return not lookup.awaited

    def _tell(self, lookup: _Lookup, found: Masters | None) -> None:
        with suppress(InvalidStateError):  # whoever asked has given up
            if found is not None:
                lookup.found.set_result(found)
            else:
                lookup.found.set_exception(self.directory.not_found(lookup.errors.values()))

    def _end(self) -> None:
        # What was known last is kept: whoever comes again finds out that another server is the master since.
        self._is_running, self._run, self.masters = False, self._run + 1, None
        self._answers.clear()
        self._asked.clear()
        self._changed.notify_all()


def _text(hosts: frozenset[Host]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in sorted(hosts)) or "none"


class Routes:
    """What a locator knows: the server for a key, or that somebody must be asked."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings, self._watch = settings, watch_of(settings)
        self._place = settings.hosts[0] if settings.hosts else ("", 0)  # where there is only one
        self._refreshed = self._answered = 0  # where they differ, somebody is asked again
        self._moved: dict[int, Host] = {}  # slots that are elsewhere by now, as a node said
        self._moved_since: Masters | None = None

    def refresh(self) -> None:
        """Ask for the masters again at the next look-up."""
        self._refreshed += 1
        self._moved.clear()

    def move(self, slot: int, host: Host) -> None:
        """Take note that a node said which other one serves a slot."""
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
    """Return the watch that all of this process share who ask the same directory; None where there is one server."""
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


def replaced(host: Host) -> ConnectionFailed:
    """Return the error for those who connect to a server that is not a master any more."""
    return ConnectionFailed(f"Redis at {host[0]}:{host[1]} is not the master any more; another one was promoted")


def _after_fork() -> None:
    global _making  # noqa: PLW0603 (somebody may have held it)
    _making = threading.Lock()
    for watch in _watches:
        watch.reset()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_after_fork)
