"""Watches which server is the master of a Sentinel service, for all connections of this process to it.

A server that was frozen or cut off while another was promoted still takes itself for the master: it answers reads and
accepts writes, which are thrown away once a Sentinel gets through to it. Nothing on the connection says so. Only the
Sentinels know, so all of them are asked every second, as long as there are connections.

Shared by the async and the sync half.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.errors import AuthenticationFailed, ConnectionFailed, PenstockError, PermissionDenied
from penstock.redis.blocking import Connection, Reply
from penstock.redis.blocking_connect import connect
from penstock.redis.settings import ConnectionSettings, Host

logger = logging.getLogger("penstock.redis")
_POLL_S = 1.0
_PATIENCE_S = 5.0


class Tied(Protocol):
    """What is of use only while its server is the master: a connection, or the attempt to open one."""

    @property
    def is_open(self) -> bool:
        """Whether it is still in use."""

    def abort_from_outside(self) -> None:
        """End it, from any thread."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one Sentinel says: the master, the number of the failover that made it one, and whether it seems down."""

    host: Host
    epoch: int
    is_down: bool = False


def newest(answers: Collection[Answer], known: Answer | None, sentinels: int) -> Answer | None:
    """Return whom to believe: the Sentinel that knows of the latest failover.

    One that is cut off from the others does not know of it. Less than what is known already is believed only if most
    Sentinels say it: then they were set up anew.
    """
    if not answers:
        return known
    host = known.host if known is not None else None
    found = max(answers, key=lambda answer: (answer.epoch, answer.host == host, not answer.is_down))
    is_older = known is not None and found.epoch < known.epoch
    return known if is_older and 2 * len(answers) <= sentinels else found


class _Lookup:
    """Somebody who waits for an answer that is given from now on."""

    def __init__(self, sentinels: Collection[Host]) -> None:
        self.found: Future[Host] = Future()
        self.awaited = set(sentinels)
        self.errors: dict[Host, PenstockError] = {}  # a Sentinel may be asked again before another has answered


class MasterWatch:
    """The master of one service; a thread for each Sentinel asks it while anything is tied to the master."""

    def __init__(self, sentinels: ConnectionSettings, service: str) -> None:
        self.sentinels, self.service = sentinels, service
        self.reset()

    def reset(self) -> None:
        """Begin anew: in a forked process there are no threads."""
        self.master: Host | None = None  # None = unknown, and nobody watches
        self._known: Answer | None = None
        self._answers: dict[Host, Answer] = {}
        self._ties: list[tuple[Host, weakref.ref[Tied]]] = []
        self._lookups: list[_Lookup] = []
        self._run = 0  # the number of the threads that ask
        self._is_running = False
        self._changed = threading.Condition()

    def ask(self) -> Future[Host]:
        """Have the Sentinels asked now."""
        lookup = _Lookup(self.sentinels.hosts)
        with self._changed:
            self._lookups.append(lookup)
            self._start()
            self._changed.notify_all()
        return lookup.found

    def tie(self, host: Host, tied: Tied) -> bool:
        """Abort it as soon as another server than this is the master; return False if one is already."""
        with self._changed:
            if self.master not in (None, host):
                return False
            self._ties.append((host, weakref.ref(tied)))
            self._start()
        return True

    def _start(self) -> None:
        if self._is_running:
            return
        self._is_running, self._run = True, self._run + 1
        for sentinel in self.sentinels.hosts:
            threading.Thread(
                target=self._poll, args=(sentinel, self._run), name="penstock-sentinel", daemon=True
            ).start()

    def _poll(self, sentinel: Host, run: int) -> None:
        connection: Connection | None = None
        settings = replace(self.sentinels, hosts=(sentinel,))
        while True:
            with self._changed:
                lookups = list(self._lookups)  # whoever comes later gets a later answer
            try:
                if connection is None or not connection.is_open:
                    connection = connect(settings, sentinel)
                said: Answer | PenstockError = self._question(connection)
            except PenstockError as error:
                said = error
            except Exception as error:
                # Whatever it is: nobody would notice a stale master from now on.
                logger.exception("the Sentinel at %s cannot be asked", settings.where)
                said = ConnectionFailed(repr(error))
            if not self._heard(run, sentinel, said, lookups):
                break
            self._wait(run, lookups)
        if connection is not None:
            connection.close()

    def _question(self, connection: Connection) -> Answer:
        # MASTER names the old one until the failover is over; its epoch is that of the promotion already.
        address, details = connection.pipeline(
            [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service), ("SENTINEL", "MASTER", self.service)]
        )
        if isinstance(address, PenstockError):
            raise address
        if not address:
            raise ConnectionFailed(f"it does not know the service {self.service!r}")
        return _answer(address, [] if isinstance(details, PenstockError) else details)

    def _wait(self, run: int, lookups: list[_Lookup]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: run != self._run or any(lookup not in lookups for lookup in self._lookups), _POLL_S
            )

    def _heard(self, run: int, sentinel: Host, said: Answer | PenstockError, lookups: list[_Lookup]) -> bool:
        """Take note of what a Sentinel said; return whether it shall be asked again."""
        with self._changed:
            if run != self._run:
                return False
            if isinstance(said, Answer):
                self._answers[sentinel] = said
            else:
                self._answers.pop(sentinel, None)
            self._known = known = newest(self._answers.values(), self._known, len(self.sentinels.hosts))
            before, self.master = self.master, known.host if known is not None else None
            left = self._prune()
            found = known.host if isinstance(said, Answer) and known is not None and not known.is_down else None
            told = [lookup for lookup in lookups if found or self._is_the_last(lookup, sentinel, said)]
            self._lookups = [lookup for lookup in self._lookups if lookup not in told and not lookup.found.done()]
            is_needed = bool(self._ties or self._lookups or lookups)  # whoever was answered is about to connect
            if not is_needed:
                self._end()
        if before is not None and known is not None and before != known.host:
            logger.warning("%s: the master is %s:%d now, and no longer %s:%d", self.service, *known.host, *before)
        for tied in left:
            tied.abort_from_outside()
        for lookup in told:
            self._tell(lookup, found)
        return is_needed

    def _prune(self) -> list[Tied]:
        # Forget what is closed or thrown away, and return what is tied to another server than the master.
        ties = [(host, reference, reference()) for host, reference in self._ties]
        is_open = [(host, reference, tied) for host, reference, tied in ties if tied is not None and tied.is_open]
        self._ties = [(host, reference) for host, reference, _ in is_open if host == self.master or not self.master]
        return [tied for host, _, tied in is_open if self.master is not None and host != self.master]

    @staticmethod
    def _is_the_last(lookup: _Lookup, sentinel: Host, said: Answer | PenstockError) -> bool:
        lookup.awaited.discard(sentinel)
        if isinstance(said, PenstockError):
            lookup.errors[sentinel] = said
        return not lookup.awaited

    def _tell(self, lookup: _Lookup, found: Host | None) -> None:
        with suppress(InvalidStateError):  # whoever asked has given up
            if found is not None:
                lookup.found.set_result(found)
            else:
                lookup.found.set_exception(self.not_found(lookup.errors.values()))

    def not_found(self, reasons: Collection[PenstockError]) -> PenstockError:
        """Return the error for those who look for the master, and there is none."""
        where = self.sentinels.where
        if any(isinstance(reason, AuthenticationFailed | PermissionDenied) for reason in reasons):
            return AuthenticationFailed(
                f"a Sentinel at {where} refused us: give sentinel_username and sentinel_password, which are its own"
            )
        why = f" ({'; '.join(dict.fromkeys(map(str, reasons)))})" if reasons else ""
        return ConnectionFailed(
            f"no Sentinel at {where} knows of a living master of {self.service!r}{why}; do they run, is the name right?"
        )

    def _end(self) -> None:
        self._is_running, self._run, self.master, self._known = False, self._run + 1, None, None
        self._answers.clear()
        self._changed.notify_all()


def _answer(address: Reply, details: Reply) -> Answer:
    host, port = address
    found = dict(zip(details[::2], details[1::2], strict=False))
    # Down is said of the old one, which may have been replaced a moment ago.
    is_same = (found.get(b"ip"), found.get(b"port")) == (host, port)
    flags = found.get(b"flags", b"").split(b",")
    is_down = is_same and (b"s_down" in flags or b"o_down" in flags)
    return Answer((host.decode(), int(port)), int(found.get(b"config-epoch", 0)), is_down)


_watches: weakref.WeakSet[MasterWatch] = weakref.WeakSet()
_making = threading.Lock()


def watch_of(settings: ConnectionSettings) -> MasterWatch | None:
    """Return the watch that all of this process share who go to the same service; None where there are no Sentinels."""
    if settings.kind != "sentinel":
        return None
    sentinels = ConnectionSettings(
        hosts=tuple(dict.fromkeys(settings.hosts)),
        username=settings.sentinel_username,
        password=settings.sentinel_password,
        tls=settings.tls,
        tls_options=settings.tls_options,
        socket_timeout_s=_PATIENCE_S,
        connect_timeout_s=_PATIENCE_S,
    )
    with _making:
        for watch in _watches:
            if (watch.sentinels, watch.service) == (sentinels, settings.service_name):
                return watch
        made = MasterWatch(sentinels, str(settings.service_name))
        _watches.add(made)
        return made


def replaced(host: Host) -> ConnectionFailed:
    """Return the error for those who connect to a server that is not the master any more."""
    return ConnectionFailed(f"Redis at {host[0]}:{host[1]} is not the master any more; the Sentinels name another one")


def _after_fork() -> None:
    global _making  # noqa: PLW0603 (somebody may have held it)
    _making = threading.Lock()
    for watch in _watches:
        watch.reset()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_after_fork)
