"""Acknowledges what is done: carried with the next read where one is due, else in a write of its own."""

from __future__ import annotations

import time
from typing import NamedTuple

from penstock.delivery.group_commands import MAX_IDS
from penstock.delivery.in_flight import InFlight
from penstock.errors import GroupLost, PenstockError
from penstock.redis.aio import Reply
from penstock.runtime.aio import Lock, pause

# Not a round number: messages that come at a steady pace mostly come at a round one, and what falls due in the moment
# of the next message would delay it.
LINGER_S = 0.007
_OLD_S = 0.002
_RECORD_EVERY_S = 0.1
_WORTH_CARRYING = 10
_WORTH_COUNTING = 50  # with fewer ids looking them up is as cheap, however many consumers there are


class Acks(NamedTuple):
    """Messages that are acknowledged in one script call, as GroupCommands.ack_command() wants them."""

    ids: list[str]
    forget: bool
    record: bool
    expected: int = -1


class AckSender:
    """Acknowledges messages that are finished."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight, self._commands, self._tally = in_flight, in_flight.context.commands, in_flight.context.tally
        self._must_look = False  # the server's count was not what it should be: the next ones are looked up
        self._carried = 0  # how many reads took some along
        self._last_record_s = 0.0
        self._is_record_old = False  # some were acknowledged since the position was recorded
        self._flushing = Lock()

    def take(self, *, for_read: bool = False, is_calm: bool = False) -> Acks | None:
        """Return what is to be acknowledged next; the caller says what became of it.

        A read carries nothing while there is little: a moment later there is more. `is_calm` tells that no read and no
        claim is under way, so that the server's count of what is pending here and ours must be the same.
        """
        in_flight = self._in_flight
        if for_read:
            count = len(in_flight.finished)
            if count < _WORTH_CARRYING and not (count and time.monotonic() - in_flight.first_finished_s > _OLD_S):
                return None
            self._carried += 1
        in_flight.has_finished.clear()
        with in_flight.lock:
            ids = in_flight.finished[:MAX_IDS]
            if not ids:
                return None
            del in_flight.finished[:MAX_IDS]
            unfinished, left = len(in_flight), len(in_flight.finished)
            forget, in_flight.has_attempts = in_flight.has_attempts, in_flight.has_attempts and left > 0
            is_known = is_calm and len(ids) >= _WORTH_COUNTING and not in_flight.unanswered and not self._must_look
            self._must_look = False
            expected = unfinished + left + len(ids) if is_known else -1
            in_flight.unanswered.append(ids)
        if in_flight.finished:
            in_flight.has_finished.set()  # more than fit, or another one since: nobody else may come and say so
        return Acks(ids, forget, self._is_record_due(unfinished == 0), expected)

    def _is_record_due(self, is_quiet: bool) -> bool:
        # The position matters should the group be destroyed: exact whenever the consumer is quiet, else now and then.
        now = time.monotonic()
        self._is_record_old = not is_quiet and now - self._last_record_s < _RECORD_EVERY_S
        if not self._is_record_old:
            self._last_record_s = now
        return not self._is_record_old

    def answered(self, acks: Acks, reply: Reply) -> None:
        """Take note of the server's answer, which may be an error."""
        if isinstance(reply, GroupLost):
            self._in_flight.answered(acks.ids)  # the pending list went with the group
            return
        acked, refused = (-1, []) if isinstance(reply, PenstockError) else (int(reply[0]), reply[1])
        if acked < 0:
            self._must_look = not isinstance(reply, PenstockError)
            self._take_back(acks)
            return
        self._in_flight.answered(acks.ids)
        unconfirmed = self._commands.unconfirmed
        if refused:
            # After a lost answer "not pending" means that the first try was heard.
            lost = [entry_id for entry_id in map(bytes.decode, refused) if entry_id not in unconfirmed]
            acked += len(refused) - len(lost)
            if lost:
                self._in_flight.count_lost(lost)
        if unconfirmed:
            unconfirmed.difference_update(acks.ids)
        self._tally.count_acked(acked)

    def put_back(self, acks: Acks) -> None:
        """Acknowledge these again later: the answer got lost, and they may have been heard."""
        self._commands.unconfirmed.update(acks.ids)
        self._take_back(acks)

    def _take_back(self, acks: Acks) -> None:
        in_flight = self._in_flight
        with in_flight.lock:
            in_flight.answered(acks.ids)
            in_flight.has_attempts = in_flight.has_attempts or acks.forget
            in_flight.finished[:0] = acks.ids
        in_flight.has_finished.set()

    async def flush(self) -> None:
        """Acknowledge everything that is done, in writes of its own."""
        async with self._flushing:
            while (acks := self.take()) is not None:
                try:
                    reply = await self._commands.ack(acks.ids, acks.forget, acks.record)
                except GroupLost as error:
                    self.answered(acks, error)
                    raise
                except BaseException:
                    self.put_back(acks)
                    raise
                self.answered(acks, reply)

    async def run_once(self) -> None:
        """Wait for something to acknowledge, give a read the chance to carry it, else send it."""
        if not await self._in_flight.has_finished.wait(_RECORD_EVERY_S if self._is_record_old else None):
            await self._record()
            return
        carried = self._carried
        await pause(LINGER_S)
        if self._in_flight.finished and self._carried == carried:  # else what is left is younger than that
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
