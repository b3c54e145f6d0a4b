"""Renews leases from a thread, so that a handler that blocks its event loop keeps its messages.

All leases of a process on the same server and with the same patience share one thread and one connection. Shared by the
async and sync APIs; uses the blocking transport.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import ConsumerNameTaken, GroupLost, PenstockError
from penstock.keys import StreamKeys
from penstock.redis.blocking import Reply
from penstock.redis.packing import Command
from penstock.redis.scripts import Call, ScriptRunner, script
from penstock.redis.settings import ConnectionSettings
from penstock.redis.translate import checked

logger = logging.getLogger("penstock.delivery")
Renewal: TypeAlias = Generator[list[Call], list[Reply], None]
_MIN_PATIENCE_S = 1.0  # less would time out on servers that are only slow
_CHUNK = 500  # leases per script call
_CALLS = 8  # per round trip: the renewal of many leases delays no other for longer than these take
_STOP_S = 1.0


class Renewable(ABC):
    """Leases that a thread renews when they are due, between start() and stop(), which any thread may call."""

    def __init__(
        self, settings: ConnectionSettings, key: str, interval_s: float, patience_s: float, what: str,
        log: logging.Logger = logger,
    ) -> None:  # fmt: skip
        self._thread = _thread_for(settings, key, patience_s)
        self._interval_s, self._patience_s, self._what, self._logger = interval_s, patience_s, what, log
        self._due_s = 0.0

    def start(self, *, at_once: bool = False) -> None:
        """Start renewing, first after an interval unless `at_once`."""
        if not self._thread.has(self):
            self._due_s = time.monotonic() + (0.0 if at_once else self._interval_s)
            self._thread.add(self)

    def stop(self) -> None:
        """Stop renewing; wait for a command that is under way, at most a second."""
        self._thread.remove(self)

    @abstractmethod
    def renew(self) -> Renewal:
        """Renew all leases once: yield calls and receive their replies, which may be errors."""

    @property
    def due_s(self) -> float:
        """When to renew again, by time.monotonic(); called with the thread's lock held."""
        return self._due_s

    @property
    def early_s(self) -> float:
        """How much earlier than due it may be renewed together with others, so that the thread wakes up once."""
        return self._interval_s / 8

    @property
    def timeout_s(self) -> float:
        """How long replies may take."""
        return self._patience_s

    def begin(self) -> Renewal:
        """Begin a renewal."""
        # From the previous due time, so that the duration of a renewal does not delay the next one.
        self._due_s = max(self._due_s + self._interval_s, time.monotonic() + self._interval_s / 2)
        return self.renew()

    def failed(self, error: Exception) -> None:
        """Handle a failed renewal."""
        if isinstance(error, PenstockError):
            self._logger.warning("cannot renew the %s: %s", self._what, error)
            self._due_s = time.monotonic() + self._interval_s / 4
        else:
            self._logger.error("cannot renew the %s", self._what, exc_info=error)


class Held(NamedTuple):
    """Messages that one consumer of a group holds."""

    keys: StreamKeys
    group: str
    consumer: str
    ids: Sequence[str]

    def renew(self, incarnation: str = "", name_ttl_ms: int = 0) -> Call:
        """Return the call that renews their leases; its reply is the refused ids, and those whose entries vanished."""
        names = [self.keys.stream]
        if incarnation:
            # Only if needed: while a slot is being moved, a script is refused if one of its keys does not exist.
            names.append(self.keys.worker(self.group, self.consumer))
        args: Command = (len(names), *names, self.group, self.consumer, incarnation, name_ttl_ms, *self.ids)
        return Call(self.keys.stream, script("streams/renew"), args)

    def hold(self, lease_ms: int, settled: Iterable[str] = ()) -> Call:
        """Return the call that keeps them although their entries vanished; its reply is the refused ids."""
        ids = [*((item, 1) for item in self.ids), *((item, 0) for item in settled)]
        names = (self.keys.stream, self.keys.retries(self.group))
        words: Command = tuple(word for pair in ids for word in pair)
        args = (len(names), *names, self.group, self.consumer, lease_ms, *words)
        return Call(self.keys.stream, script("streams/hold_vanished"), args)


class StreamLeases(Renewable):
    """The leases of all messages that one consumer of a group has in flight, on one stream or several of one slot."""

    def __init__(
        self, settings: ConnectionSettings, key: str, group: str, consumer: str, interval_s: float, lease_ms: int,
        in_flight: Callable[[], Mapping[StreamKeys, Sequence[str]]], on_lost: Callable[[StreamKeys, list[str]], None],
    ) -> None:  # fmt: skip
        # Time out after an interval, at most a third of the lease, which leaves time for another try.
        super().__init__(settings, key, interval_s, max(_MIN_PATIENCE_S, interval_s), f"leases of {consumer}")
        self._group, self._consumer, self._lease_ms = group, consumer, lease_ms
        self._in_flight, self._on_lost = in_flight, on_lost
        self.name_ttl_ms = 3 * lease_ms
        self._name: tuple[str, int] = ("", 0)
        self._on_fenced: Callable[[], None] = lambda: None
        self._vanished: dict[StreamKeys, set[str]] = {}  # their entries vanished while their handlers run
        self._being_reported: set[tuple[str, str]] = set()  # stream and id of lost leases that are being reported

    def keep_name(self, incarnation: str, on_fenced: Callable[[], None]) -> None:
        """Also keep the consumer's name, until another process has taken it."""
        self._name, self._on_fenced = (incarnation, self.name_ttl_ms), on_fenced

    def renew(self) -> Renewal:
        """Renew what is in flight now, and the consumer's name."""
        errors, before, self._vanished = list[PenstockError](), self._vanished, {}
        held = [
            Held(keys, self._group, self._consumer, ids[start : start + _CHUNK])
            for keys, ids in self._in_flight().items()
            if ids or self._name[0]
            for start in range(0, max(1, len(ids)), _CHUNK)
        ]
        if not held and not before:
            return
        for start in range(0, len(held), _CALLS):
            some = held[start : start + _CALLS]
            replies = yield [chunk.renew(*self._name) for chunk in some]
            for chunk, reply in zip(some, replies, strict=True):
                if isinstance(reply, PenstockError):
                    errors.append(reply)  # of this stream; still renew the others
                    continue
                self._lose(chunk.keys, reply[0])
                if reply[1]:
                    self._vanished.setdefault(chunk.keys, set()).update(item.decode() for item in reply[1])
        kept = {keys: self._vanished.get(keys, set()) for keys in {**before, **self._vanished}}
        replies = yield [
            Held(keys, self._group, self._consumer, list(ids)).hold(self._lease_ms, before.get(keys, set()) - ids)
            for keys, ids in kept.items()
        ]
        for keys, refused in zip(kept, checked(replies), strict=True):
            self._lose(keys, refused)
        checked(errors)

    def _lose(self, keys: StreamKeys, refused: Sequence[bytes]) -> None:
        if not refused:
            return
        held = set(self._in_flight().get(keys, ()))  # messages that were settled meanwhile are not lost
        found = [item for item in map(bytes.decode, refused) if item in held]
        lost = [item for item in found if (keys.stream, item) not in self._being_reported]
        if not lost:
            return
        reported = [(keys.stream, item) for item in lost]
        self._being_reported.update(reported)
        try:
            call_in_thread(self._report_lost, keys, lost)
        except RuntimeError as error:  # no more threads: the next renewal finds them again
            self._being_reported.difference_update(reported)
            self._logger.warning("cannot report lost leases of %s: %s", keys.stream, error)

    def _report_lost(self, keys: StreamKeys, lost: list[str]) -> None:
        try:
            self._on_lost(keys, lost)
        finally:
            self._being_reported.difference_update([(keys.stream, item) for item in lost])

    def failed(self, error: Exception) -> None:
        """Handle a failed renewal."""
        if isinstance(error, ConsumerNameTaken):
            self._due_s = float("inf")
            self._on_fenced()
        elif not isinstance(error, GroupLost):  # the reader notices it, too, and recreates the group
            super().failed(error)


def call_in_thread(function: Callable[..., None], *args: object) -> None:
    """Call a function, perhaps the user's, in another thread, so that it cannot delay renewals."""

    def call() -> None:
        try:
            function(*args)
        except Exception:  # the event loop of the handler may be gone
            logger.exception("the callback for a lost lease failed")

    threading.Thread(target=call, name="penstock-lease-told", daemon=True).start()


# --- the thread -----------------------------------------------------------------------------------------


class LeaseThread:
    """Renews all registered leases in as few round trips as possible; ends when there are none.

    Guarantees: a renewal waits for others for one round trip at most, which takes no longer than the patience that all
    of them share.
    """

    def __init__(self, settings: ConnectionSettings, key: str) -> None:
        self.settings, self.key = settings, key
        self.reset()

    def reset(self) -> None:
        """Start over: a forked process has no threads, and the connection belongs to its parent."""
        self.changed = threading.Condition()
        self.wakes_s = float("inf")
        self._renewables: set[Renewable] = set()
        self._under_way: dict[Renewable, tuple[Renewal, list[Call] | None]] = {}  # None = not begun
        self._thread: threading.Thread | None = None
        self._runner: ScriptRunner | None = None

    def has(self, renewable: Renewable) -> bool:
        """Return whether it is registered."""
        return renewable in self._renewables

    def add(self, renewable: Renewable) -> None:
        """Renew it when it is due; raise RuntimeError, and register nothing, if no thread can be started."""
        with self.changed:
            if self._thread is None:
                runner = ScriptRunner(self.settings)
                thread = threading.Thread(target=self._run, args=(runner,), name="penstock-leases", daemon=True)
                thread.start()  # it waits for the lock
                self._thread, self._runner = thread, runner
            self._renewables.add(renewable)
            self.changed.notify_all()

    def remove(self, renewable: Renewable) -> None:
        """Stop renewing it; wait for a renewal that is under way, at most a second."""
        with self.changed:
            self._renewables.discard(renewable)
            thread, is_last = self._thread, not self._renewables
            if is_last and self._runner is not None:
                self._runner.abort()  # no other renewal waits for a reply
            self.changed.notify_all()
            if thread is None or thread is threading.current_thread():
                return
            self.changed.wait_for(lambda: renewable not in self._under_way, _STOP_S)
        if is_last:
            thread.join(_STOP_S)

    def _run(self, runner: ScriptRunner) -> None:
        while self._take_due():
            replies, error = list[Reply](), None
            try:
                if calls := [call for _, some in self._under_way.values() for call in some or ()]:
                    replies = runner.run_all(calls, min(item.timeout_s for item in self._under_way))
            except Exception as failure:
                error = failure
            self._proceed(replies, error)
        runner.close()

    def _take_due(self) -> bool:
        with self.changed:
            while self._renewables or self._under_way:
                now_s = time.monotonic()
                due_s = {item: item.due_s for item in self._renewables if item not in self._under_way}
                self.wakes_s = min(due_s.values(), default=float("inf"))
                if self.wakes_s <= now_s:
                    due = [item for item in due_s if due_s[item] - item.early_s <= now_s]
                    self._under_way.update({item: (item.begin(), None) for item in due})
                if self._under_way:
                    return True
                self.changed.wait(None if self.wakes_s == float("inf") else max(0.0, self.wakes_s - now_s))
            self._thread = None
            return False

    def _proceed(self, replies: list[Reply], error: Exception | None) -> None:
        start = 0
        for item, (renewal, calls) in list(self._under_way.items()):
            mine: Any = None if calls is None else replies[start : start + len(calls)]
            start += len(calls or ())
            following = None
            try:
                if self.has(item):
                    following = renewal.throw(error) if error is not None and calls else renewal.send(mine)
            except StopIteration:
                pass
            except Exception as failure:
                # Whatever it is: if the thread ended, all leases would be lost without a trace.
                item.failed(failure)
            with self.changed:
                self._under_way[item] = renewal, following
                if following is None:
                    renewal.close()  # half-way, if it was stopped
                    del self._under_way[item]
                    self.changed.notify_all()


_threads: weakref.WeakSet[LeaseThread] = weakref.WeakSet()
_making = threading.Lock()


def _thread_for(settings: ConnectionSettings, key: str, patience_s: float) -> LeaseThread:
    settings = settings.within(patience_s)
    key = key if settings.kind == "cluster" else ""  # where the node of one key may hang while others answer
    with _making:
        for thread in _threads:
            if (thread.settings, thread.key) == (settings, key):
                return thread
        made = LeaseThread(settings, key)
        _threads.add(made)
        return made


def _after_fork() -> None:
    global _making  # noqa: PLW0603 (somebody may have held it)
    _making = threading.Lock()
    for thread in _threads:
        thread.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
