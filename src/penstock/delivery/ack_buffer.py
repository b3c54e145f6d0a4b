"""Acknowledges what is done: carried with the next read where one is due, else in a write of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.counters import Tally
from penstock.delivery.group_commands import MAX_IDS, GroupCommands
from penstock.delivery.inbox import Inbox
from penstock.errors import GroupLost, PenstockError
from penstock.model import StreamMessage
from penstock.redis.aio import Command, Reply
from penstock.runtime.aio import Event, Lock, pause

# Not a round number: messages that come at a steady pace mostly come at a round one, and what falls due in the moment
# of the next message would delay it.
LINGER_S = 0.007
_OLD_S = 0.002
_RECORD_EVERY_S = 0.1
_WORTH_CARRYING = 10
_WORTH_COUNTING = 50  # with fewer ids looking them up is as cheap, however many consumers there are


@dataclass(frozen=True, slots=True, eq=False)
class Acks:
    """Messages that are acknowledged in one script call."""

    ids: list[str]
    forget: bool
    record: bool
    expected: int = -1


class AckBuffer:
    """Collects the ids of finished messages and acknowledges them."""

    def __init__(
        self, commands: GroupCommands, inbox: Inbox, tally: Tally, on_refused: Callable[[list[str]], None]
    ) -> None:
        self._commands, self._held, self._tally, self._on_refused = commands, inbox.held, tally, on_refused
        self._must_look = False  # the server's count was not what it should be: the next ones are looked up
        self._carried = 0  # how many reads took some along
        self._has_attempts = False  # some of them have a record of attempts to be forgotten
        self._first_done_s = 0.0
        self._last_record_s = 0.0
        self._is_record_old = False  # some were acknowledged since the position was recorded
        self._flushing = Lock()
        self.dirty = Event()

    def done(self, messages: list[StreamMessage], ids: list[str], is_again: bool) -> None:
        """Take note that messages are finished; those that ran again have a record of attempts to be forgotten."""
        held = self._held
        with held.lock:  # else another thread might count a message twice, or not at all
            # A message that was handed back meanwhile is not ours to settle.
            found = held.finish(messages)
            if not held.finished:
                self._first_done_s = time.monotonic()
            held.finished += ids if found is messages else [message.id for message in found]
            self._has_attempts = self._has_attempts or is_again
        if held.finished and not self.dirty.is_set():
            self.dirty.set()

    def take_along(self, is_calm: bool) -> Acks | None:
        """Return what a read should carry: nothing while there is little, for a moment later there is more."""
        finished = self._held.finished
        if len(finished) < _WORTH_CARRYING and not (finished and time.monotonic() - self._first_done_s > _OLD_S):
            return None
        self._carried += 1
        return self.take(is_calm)

    def take(self, is_calm: bool = False) -> Acks | None:
        """Return what is to be acknowledged next; the caller says what became of it.

        `is_calm` tells that no read and no claim is under way, so that the server's count of what is pending here and
        ours must be the same.
        """
        self.dirty.clear()
        with self._held.lock:
            acks = self._next(is_calm)
        if self._held.finished:
            self.dirty.set()  # more than fit, or another one since: nobody else may come and say so
        return acks

    def _next(self, is_calm: bool) -> Acks | None:
        held = self._held
        taken = held.finished[:MAX_IDS]
        if not taken:
            return None
        del held.finished[:MAX_IDS]
        unfinished = len(held)
        forget, self._has_attempts = self._has_attempts, self._has_attempts and bool(held.finished)
        is_known = is_calm and len(taken) >= _WORTH_COUNTING and not held.in_acks and not self._must_look
        expected = unfinished + len(held.finished) + len(taken) if is_known else -1
        self._must_look = False
        acks = Acks(taken, forget, self._is_record_due(unfinished == 0), expected)
        held.in_acks.append(taken)
        return acks

    def _is_record_due(self, is_quiet: bool) -> bool:
        # The position matters should the group be destroyed: exact whenever the consumer is quiet, else now and then.
        now = time.monotonic()
        self._is_record_old = not is_quiet and now - self._last_record_s < _RECORD_EVERY_S
        if not self._is_record_old:
            self._last_record_s = now
        return not self._is_record_old

    def command(self, acks: Acks) -> Command:
        """Return the command for acknowledgements that travel with a read."""
        return self._commands.ack_command(acks.ids, acks.forget, acks.record, acks.expected)

    def answered(self, acks: Acks, reply: Reply) -> None:
        """Take note of the server's answer to acknowledgements that travelled with a read."""
        if isinstance(reply, GroupLost):
            self._forget(acks)  # the pending list went with the group
        elif isinstance(reply, PenstockError):
            self._take_back(acks)
        else:
            acked, refused = self._commands.parse_ack(reply)
            if acked < 0:
                self._must_look = True
                self._take_back(acks)
            else:
                self._forget(acks)
                self._count(acks, acked, refused)

    def put_back(self, acks: Acks) -> None:
        """Acknowledge these again later: the answer got lost, and they may have been heard."""
        self._commands.unheard.update(acks.ids)
        self._take_back(acks)

    def _forget(self, acks: Acks) -> None:
        with self._held.lock:
            self._no_longer_asked(acks)

    def _take_back(self, acks: Acks) -> None:
        with self._held.lock:
            self._no_longer_asked(acks)
            self._has_attempts = self._has_attempts or acks.forget
            self._held.finished[:0] = acks.ids
        self.dirty.set()

    def _no_longer_asked(self, acks: Acks) -> None:
        asked = self._held.in_acks
        del asked[next(place for place, told in enumerate(asked) if told is acks.ids)]

    def _count(self, acks: Acks, acked: int, refused: list[str]) -> None:
        if refused:
            # After a lost answer "not pending" means that the first try was heard.
            lost = [entry_id for entry_id in refused if entry_id not in self._commands.unheard]
            acked += len(refused) - len(lost)
            if lost:
                self._on_refused(lost)
        if self._commands.unheard:
            self._commands.unheard.difference_update(acks.ids)
        self._tally.count_acked(acked)

    async def flush(self) -> None:
        """Acknowledge everything that is done, in writes of its own."""
        async with self._flushing:
            while (acks := self.take()) is not None:
                try:
                    acked, refused = await self._commands.ack(acks.ids, acks.forget, acks.record)
                except GroupLost:
                    self._forget(acks)
                    raise  # the pending list went with the group: nothing is left to acknowledge
                except BaseException:
                    self.put_back(acks)
                    raise
                self._forget(acks)
                self._count(acks, acked, refused)

    async def run_once(self) -> None:
        """Wait for something to acknowledge, give a read the chance to carry it, else send it."""
        if not await self.dirty.wait(_RECORD_EVERY_S if self._is_record_old else None):
            await self._record()
            return
        carried = self._carried
        await pause(LINGER_S)
        if self._held.finished and self._carried == carried:  # else what is left is younger than that
            await self.flush()

    async def _record(self) -> None:
        # Handlers that run for long must not keep the record from being exact: after the loss of the group it tells who
        # was done.
        self._is_record_old = False
        try:
            await self._commands.ack([], forget=False, record=True)
        except BaseException:
            self._is_record_old = True
            raise
