"""The consumers of one process at one queue: each is a consumer of the group that holds one message at most.

So the messages pending with a slot after a lost reply are those in that reply, and a slot cannot settle a message that
another slot of the same process has taken over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from penstock.config import unique_worker_name
from penstock.delivery.group_commands import GroupCommands, Redelivery, Row, parse_rows
from penstock.errors import ConnectionLost, PenstockError
from penstock.keys import StreamKeys
from penstock.queue.model import GROUP
from penstock.redis.aio import Reply
from penstock.redis.blocking_read import BlockingRead
from penstock.redis.client import StreamClient
from penstock.redis.scripts import ScriptRunner, script
from penstock.runtime.aio import Flag, connection_scope

T = TypeVar("T")
Taken: TypeAlias = tuple[
    T, list[Redelivery], list[str]
]  # an answer, messages that are delivered again, ids of missing ones
logger = logging.getLogger("penstock.queue")
PATIENCE_S = 0.05  # how long a message that was taken ahead waits for its caller
_LONGEST_RETURN_S = 2.0  # for the command that returns one: the next caller waits for it


class ConsumerSlot:
    """One consumer, and the connection on which it waits for messages."""

    def __init__(self, client: StreamClient, keys: StreamKeys, consumer: str, dead_letters: str) -> None:
        self._client, self.consumer = client, consumer
        self.commands = GroupCommands(client, keys, GROUP, consumer, dead_letters)
        self.is_uncertain = False  # a message that no caller has may be pending here
        self.is_given_up = False
        self._has_read = False  # the uncertain message was new, not taken from another consumer
        self._reading = BlockingRead(client, keys.stream)
        self._scope: object = None
        self._begun: tuple[str, int, int] | None = None  # sent to the server, which may not have answered
        self.ahead: Row | None = None  # a message that was taken ahead, and waits for a caller
        self.ahead_since = 0.0
        self.read_ahead = self.commands.read_command(1, None)

    def _mark_uncertain(self, *, has_read: bool) -> None:
        self.is_uncertain, self._has_read, self._begun, self.ahead = True, has_read, None, None

    def mark_certain(self) -> None:
        """Record that a caller has the message that is pending here, or that there is none."""
        self.is_uncertain, self._begun, self.ahead = False, None, None

    @property
    def read_sent_s(self) -> float:
        """When the last read was sent."""
        return self._reading.sent_s

    # --- taken ahead --------------------------------------------------------------------------------

    def begin_ahead(self) -> None:
        """Record that `read_ahead` is being sent."""
        self._mark_uncertain(has_read=True)
        self.ahead_since = time.monotonic()

    def end_ahead(self, reply: Reply) -> bool:
        """Keep the message in the reply for the next caller; return False if there is none."""
        if isinstance(reply, ConnectionLost):
            return False  # uncertain
        self.ahead = self._received(reply)
        return self.ahead is not None

    def take_ahead(self, not_before_s: float) -> Row | None:
        """Return the message that was taken ahead, or None if there is none, or another consumer may have it."""
        row, self.ahead = self.ahead, None
        return row if self.ahead_since >= not_before_s else None

    # --- taking -------------------------------------------------------------------------------------

    async def read(self, block_ms: int | None) -> Row | None:
        """Read the next new message, waiting for one; return None if none arrived in time."""
        if self._scope is not connection_scope() or not self._reading.is_open:
            await self._reading.open()
            self._scope = connection_scope()
        timeout_s = self._client.settings.socket_timeout_s + (block_ms or 0) / 1000
        self._mark_uncertain(has_read=True)
        try:
            [reply] = await self._reading.send([self.commands.read_command(1, block_ms)], timeout_s)
        except PenstockError as error:
            self.is_uncertain = isinstance(error, ConnectionLost)
            raise
        row = self._received(reply)
        if isinstance(reply, PenstockError):
            raise reply
        return row

    def _received(self, reply: Reply) -> Row | None:
        rows = [] if isinstance(reply, PenstockError) else parse_rows(reply)
        self.is_uncertain = bool(rows)
        return (rows[0][0].decode(), rows[0][1]) if rows else None

    async def take(self, command: Callable[..., Awaitable[Taken[T]]], *args: object) -> Taken[T]:
        """Send a command that may take a message which was delivered before."""
        self._mark_uncertain(has_read=False)
        answer = await command(*args)
        self.is_uncertain = bool(answer[1])
        return answer

    async def take_lost(self) -> tuple[list[Redelivery], list[str]]:
        """Take the message that a lost reply contained, if any."""
        await self._reading.kill_abandoned()
        claims, missing = list[Redelivery](), list[str]()
        async for claims, missing in self.commands.take_unheld(tuple, self._has_read):
            if claims or missing:  # else they wait for their retry
                break
        self.is_uncertain = bool(claims)
        return claims, missing

    async def begin(self, entry_id: str, deliveries: int, attempts: int) -> bool:
        """Count the coming run of a message that was delivered before; False = it is no longer ours."""
        self._begun = entry_id, deliveries, attempts
        (is_begun,) = await self.commands.begin([self._begun])
        return is_begun

    def counts_of(self, found: Redelivery) -> tuple[int, int]:
        """Return deliveries and attempts of a message, without a run that was counted but has not started."""
        if self._begun is not None and self._begun[0] == found.id:
            return self._begun[1:]
        return found.deliveries, found.attempts

    async def leave(self, error: PenstockError) -> None:
        """Find the server again after an error which means that another one may have the stream."""
        await self._reading.leave(error)
        if self._reading.ask_host is not None or not isinstance(error, ConnectionLost):
            self.close()

    def give_up(self) -> None:
        """Never use this slot again: its message cannot be settled, and stays pending until its lease expires."""
        self.is_given_up = True
        self.close()

    def close(self) -> None:
        """Close the connection, on which nothing is under way."""
        if self._reading.connection is not None and self._scope is connection_scope():
            self._reading.connection.abort()


class ConsumerSlots:
    """Lends slots to callers, first those that may have a message which no caller has.

    Guarantees: a message that was taken ahead and that no caller asks for is returned to the queue, then `on_return` is
    called. Meanwhile, no empty slot is lent, because its caller would read a newer message. A forked process needs its
    own slots: the names and connections of these belong to its parent.
    """

    def __init__(
        self, client: StreamClient, keys: StreamKeys, dead_letters: str, on_return: Callable[[], None]
    ) -> None:
        self._client, self._keys, self._dead_letters, self._on_return = client, keys, dead_letters, on_return
        self.name, self._made, self._process = unique_worker_name(GROUP), 0, os.getpid()
        self._free: list[ConsumerSlot] = []
        self._lock = threading.Lock()
        self._return_thread: threading.Thread | None = None  # returns messages that no caller asks for
        self._is_returning = False  # whether it is returning a message now
        self._waiting: list[Flag] = []  # one for each caller who waits for that: they may be in several event loops
        self._has_taken_ahead = False  # since the thread looked last
        self.may_take_ahead = True

    @property
    def is_foreign(self) -> bool:
        """Whether they belong to the parent of this forked process."""
        return self._process != os.getpid()

    async def borrow(self) -> ConsumerSlot:
        """Return an unused slot; wait while a message is being returned, which an empty slot would overtake."""
        while True:
            with self._lock:
                if not self._is_returning or self._is_any_uncertain:
                    return self._free.pop() if self._free else self._make()
            await self._wait_for_return()

    def borrow_empty(self) -> ConsumerSlot | None:
        """Return an empty slot, or None if a slot is uncertain or a message is being returned, which come first."""
        with self._lock:
            if self._is_returning or self._is_any_uncertain:
                return None
            return self._free.pop() if self._free else self._make()

    @property
    def _is_any_uncertain(self) -> bool:
        return bool(self._free) and self._free[-1].is_uncertain

    def _make(self) -> ConsumerSlot:
        self._made += 1
        return ConsumerSlot(self._client, self._keys, f"{self.name}-{self._made}", self._dead_letters)

    def put_back(self, slot: ConsumerSlot) -> None:
        """Take back a slot that is no longer used, with a message that may be uncertain."""
        with self._lock:
            if slot.is_given_up or self.is_foreign or not slot.consumer.startswith(self.name):
                return
            if slot.ahead is not None:
                self._watch()
            is_next = slot.is_uncertain or not self._is_any_uncertain
            self._free.insert(len(self._free) if is_next else 0, slot)

    async def borrow_uncertain(self) -> list[ConsumerSlot]:
        """Return all slots that may have a message which no caller has, once no message is being returned."""
        while True:
            with self._lock:
                if not self._is_returning:
                    uncertain = [slot for slot in self._free if slot.is_uncertain]
                    self._free = [slot for slot in self._free if not slot.is_uncertain]
                    return uncertain
            await self._wait_for_return()

    def close(self) -> None:
        """Close the connections of all unused slots."""
        with self._lock:
            free = list(self._free)
        for slot in free:
            slot.close()

    # --- what was taken ahead -----------------------------------------------------------------------

    def _watch(self) -> None:
        # A thread that runs as long as messages are taken ahead. The interpreter waits for it, so that a program which
        # ends without close() leaves no message behind until its lease expires.
        self._has_taken_ahead = True
        if self._return_thread is None:
            thread = threading.Thread(target=self._return_abandoned, name="penstock-returns", daemon=False)
            try:
                thread.start()
                self._return_thread = thread
            except RuntimeError:  # no more threads, or the interpreter is about to exit: the next call takes care of it
                self.may_take_ahead = False

    def _return_abandoned(self) -> None:
        runner = ScriptRunner(self._client.settings.within(_LONGEST_RETURN_S), self._keys.stream)
        try:
            while True:
                with self._lock:
                    if not self._is_needed():
                        self._return_thread = None
                        return
                    slot = self._next_abandoned()
                if slot is None:
                    time.sleep(PATIENCE_S / 2)
                else:
                    self._return(runner, slot)
        finally:
            runner.close()

    def _is_needed(self) -> bool:
        if not threading.main_thread().is_alive():
            self.may_take_ahead = False  # the interpreter waits for this thread
        is_needed, self._has_taken_ahead = self._has_taken_ahead, False
        return is_needed or any(slot.ahead is not None for slot in self._free)

    def _next_abandoned(self) -> ConsumerSlot | None:
        # One at a time, so that callers can use the others meanwhile.
        latest_s = time.monotonic() - PATIENCE_S
        for slot in self._free:
            if slot.ahead is not None and slot.ahead_since < latest_s:
                self._free.remove(slot)
                self._is_returning = True
                return slot
        return None

    def _return(self, runner: ScriptRunner, slot: ConsumerSlot) -> None:
        keys, (entry_id, _) = self._keys, slot.ahead or ("", [])
        names = (keys.stream, keys.retries(GROUP), keys.attempts(GROUP))
        slot.ahead = None  # uncertain until the server has answered
        try:
            runner.run(script("queue/hand_back"), (len(names), *names, GROUP, slot.consumer, entry_id))
            slot.mark_certain()
        except PenstockError as error:
            # The next call of the queue, or close(), takes care of it. After that, this command has no effect if it is
            # still in transit.
            logger.warning("cannot return message %s, which was fetched ahead: %s", entry_id, error)
        except Exception:
            logger.exception("cannot return message %s, which was fetched ahead", entry_id)
        self._on_return()
        self.put_back(slot)
        with self._lock:
            self._is_returning = False
            waiting, self._waiting = self._waiting, []
        for returned in waiting:
            returned.set_from_outside()

    async def _wait_for_return(self) -> None:
        with self._lock:
            if not self._is_returning:
                return
            returned = Flag()
            self._waiting.append(returned)
        await returned.wait()
