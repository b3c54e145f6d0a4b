"""Acknowledges finished messages, together with the next read if one is due, else separately."""

from __future__ import annotations

import time
from typing import NamedTuple

from penstock.delivery.group_commands import MAX_IDS
from penstock.delivery.in_flight import InFlight
from penstock.errors import GroupLost, PenstockError
from penstock.redis.aio import Reply
from penstock.runtime.aio import Lock, pause

# Not a round number: steady traffic mostly has a round interval, and an acknowledgement that is due together with the
# next message would delay it.
LINGER_S = 0.007
_OLD_S = 0.002
_RECORD_EVERY_S = 0.1
_CARRIED_FROM = 10
_COUNTED_FROM = 50  # fewer ids are just as cheap to look up


class Acks(NamedTuple):
    """Messages to acknowledge in one script call: the arguments of GroupCommands.ack_command()."""

    ids: list[str]
    forget: bool
    record: bool
    expected: int = -1


class AckSender:
    """Acknowledges finished messages."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight, self._commands, self._tally = in_flight, in_flight.context.commands, in_flight.context.tally
        self._must_look_up = False  # the server's count was not the expected one: look up the next ids
        self._carried = 0  # how many reads carried acknowledgements
        self._last_record_s = 0.0
        self._is_record_old = False  # some were acknowledged since the position was recorded
        self._flushing = Lock()

    def take(self, *, for_read: bool = False, is_calm: bool = False) -> Acks | None:
        """Return what to acknowledge next; the caller reports the outcome.

        A read carries none while there are few: a moment later there are more. `is_calm` means that no read and no
        claim is under way, so that the server must count as many pending messages of this consumer as we do.
        """
        in_flight = self._in_flight
        if for_read:
            count = len(in_flight.finished)
            if count < _CARRIED_FROM and not (count and time.monotonic() - in_flight.first_finished_s > _OLD_S):
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
            is_known = is_calm and len(ids) >= _COUNTED_FROM and not in_flight.unanswered and not self._must_look_up
            self._must_look_up = False
            expected = unfinished + left + len(ids) if is_known else -1
            in_flight.unanswered.append(ids)
        if in_flight.finished:
            in_flight.has_finished.set()  # more than fit, or one since then: no other call may follow
        return Acks(ids, forget, self._is_record_due(unfinished == 0), expected)

    def _is_record_due(self, is_quiet: bool) -> bool:
        # The position is needed if the group is destroyed. Record it when the consumer is idle, else from time to time.
        now = time.monotonic()
        self._is_record_old = not is_quiet and now - self._last_record_s < _RECORD_EVERY_S
        if not self._is_record_old:
            self._last_record_s = now
        return not self._is_record_old

    def answered(self, acks: Acks, reply: Reply) -> None:
        """Process the server's reply, which may be an error."""
        if isinstance(reply, GroupLost):
            self._in_flight.answered(acks.ids)  # the pending list went with the group
            return
        acked, refused = (-1, []) if isinstance(reply, PenstockError) else (int(reply[0]), reply[1])
        if acked < 0:
            self._must_look_up = not isinstance(reply, PenstockError)
            self._take_back(acks)
            return
        self._in_flight.answered(acks.ids)
        unconfirmed = self._commands.unconfirmed
        if refused:
            # After a lost reply, "not pending" means that the first try was executed.
            lost = [entry_id for entry_id in map(bytes.decode, refused) if entry_id not in unconfirmed]
            acked += len(refused) - len(lost)
            if lost:
                self._in_flight.count_lost(lost)
        if unconfirmed:
            unconfirmed.difference_update(acks.ids)
        self._tally.count_acked(acked)

    def put_back(self, acks: Acks) -> None:
        """Acknowledge these again later: the reply was lost, and they may have been acknowledged."""
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
        """Acknowledge all finished messages now."""
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
        """Wait for finished messages, give a read the chance to carry their acknowledgements, else send them."""
        if not await self._in_flight.has_finished.wait(_RECORD_EVERY_S if self._is_record_old else None):
            await self._record()
            return
        carried = self._carried
        await pause(LINGER_S)
        if self._in_flight.finished and self._carried == carried:  # else those left are newer than that
            await self.flush()

    async def _record(self) -> None:
        # Long-running handlers must not keep the record from being exact: if the group is lost, it says which messages
        # were finished.
        self._is_record_old = False
        try:
            await self._commands.ack([], forget=False, record=True)
        except BaseException:
            self._is_record_old = True
            raise
