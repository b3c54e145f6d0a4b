"""Reads new messages ahead of the workers, on its own connection, and recovers those whose replies were lost."""

from __future__ import annotations

import time

from penstock.delivery.acks import AckSender
from penstock.delivery.group_commands import MAX_IDS, parse_rows
from penstock.delivery.in_flight import FreshRow, InFlight
from penstock.errors import ConnectionLost, PenstockError, ReadOnlyServer
from penstock.events import EventName
from penstock.redis.aio import Reply
from penstock.redis.blocking_read import BlockingRead, is_late, late_after_s, longest_wait_s
from penstock.redis.packing import Command
from penstock.redis.reading import PageLimits
from penstock.redis.scripts import script
from penstock.redis.translate import Redirected, ScriptMissing
from penstock.runtime.aio import Flag, Lock, next_tick

REPLY_MARGIN_S = 2.0
_FAST_S, _SLOW_S = 0.1, 0.5
_IDLE_POLL_S = 0.05


_PAGE = PageLimits(50, MAX_IDS, 4 << 20)  # at most as many as a read can acknowledge
_MAX_BYTES = 16 << 20  # of the messages that wait in this process


class PrefetchWindow:
    """How many messages to read ahead: about a tenth of a second's work, at least one batch."""

    def __init__(self, least: int, most: int) -> None:
        self.target, self._least, self._most = least, least, most
        self._refilled_s = 0.0

    def refilled(self) -> None:
        """Record that messages arrived."""
        self._refilled_s = time.monotonic()

    def adjust(self) -> None:
        """Record that there is room: double the target if messages were handled fast, halve it if they waited long."""
        took_s = time.monotonic() - self._refilled_s
        if took_s < _FAST_S:
            self.target = min(self.target * 2, self._most)
        elif took_s > _SLOW_S:
            self.target = max(self.target // 2, self._least)


class MessageReader:
    """Reads new messages of the group for this consumer.

    Guarantees: a read is sent once. Messages that a broken connection or a cancelled read has left pending with this
    consumer are recovered before the next read, and so are those in a reply that is seen too late.
    """

    def __init__(self, in_flight: InFlight, acks: AckSender) -> None:
        context = in_flight.context
        self._in_flight, self._acks = in_flight, acks
        self._client, self._commands, self._emit = context.client, context.commands, context.emit
        config = context.config
        self._prefetch = PrefetchWindow(config.batch_size, config.max_prefetch)
        self._late_s = late_after_s(config.lease_ms / 1000, config.effective_heartbeat_ms / 1000)
        self._block_ms = min(config.block_ms, int(longest_wait_s(self._late_s) * 1000))
        self._page, self._most_waiting = _PAGE.first, config.max_prefetch
        self._sweep_interval_s = config.effective_recovery_ms / 1000
        self._blocking = BlockingRead(context.client, context.commands.keys.stream)
        self._must_sweep = True
        self.has_read = False
        self._last_sweep_s = 0.0
        self.claiming = Lock()  # held during a claim, until its messages are in flight here
        self.quiet = Flag()

    async def read(self, count: int) -> int:
        """Read new messages once, together with acknowledgements; return how many arrived."""
        await self._prepare()
        in_flight, found, is_answered = self._in_flight, 0, False
        acks = self._acks.take(for_read=True, is_calm=in_flight.is_exact and not self.claiming.locked())
        commands: list[Command] = [self._commands.ack_command(*acks)] if acks else []
        commands.append(self._commands.read_command(count, self._block_ms or None))

        def on_reply(index: int, reply: Reply) -> None:
            nonlocal is_answered, found
            if index == len(commands) - 1:
                # Here rather than after the await, so that a worker can run next.
                in_flight.is_read_under_way = False
                found = 0 if isinstance(reply, PenstockError) else self._accept(parse_rows(reply))
            elif acks is not None:
                is_answered = True
                self._acks.answered(acks, reply)

        self.has_read = in_flight.is_read_under_way = True
        try:
            replies = await self._blocking.send(commands, self._block_ms / 1000 + REPLY_MARGIN_S, on_reply)
        except BaseException as failure:
            # Cancelled, timed out or broken: messages may have been delivered in a lost reply.
            self._must_sweep = True
            if isinstance(failure, ConnectionLost):
                self._read_less()
            if acks is not None and not is_answered:
                self._acks.put_back(acks)
            raise
        finally:
            in_flight.is_read_under_way = False
        for error in [reply for reply in reversed(replies) if isinstance(reply, PenstockError)]:
            await self._refused(error)
        return found

    def _accept(self, rows: list[FreshRow]) -> int:
        # Returns how many messages are in flight now.
        if not rows:
            return 0
        found, size = len(rows), self._blocking.reply_bytes
        self._page, self._most_waiting = _PAGE.after(found, size), found * _MAX_BYTES // max(1, size)
        if is_late(self._blocking.sent_s, self._late_s):
            self._must_sweep = True  # the sweep takes those that are still ours
            self._read_less()
            return 0
        self._prefetch.refilled()
        self._in_flight.add_fresh(rows)
        return found

    def _read_less(self) -> None:
        # The reply may have been too large for the link.
        self._page = max(1, self._page // 2)

    async def _refused(self, error: PenstockError) -> None:
        connection = self._blocking.connection
        if isinstance(error, ScriptMissing) and connection is not None:
            await self._client.load(connection, [script("streams/ack")])
            return
        if isinstance(error, Redirected | ReadOnlyServer):
            await self._blocking.leave(error)
            await self.close()
        raise error

    async def read_ahead(self) -> None:
        """Wait for room, sweep if due, then read once."""
        prefetch = self._prefetch
        await self._in_flight.wait_for_room(min(prefetch.target, self._most_waiting) // 2)
        if self._in_flight.is_closed:
            return
        prefetch.adjust()
        # At least one, even if more are waiting than expected, because the read also carries acknowledgements.
        count = max(1, min(min(prefetch.target, self._most_waiting) - self._in_flight.waiting, self._page))
        found = await self.read(count)
        if not found and not self._block_ms:
            await self.quiet.wait(_IDLE_POLL_S)
        elif found < count:
            await next_tick()  # few messages: let the worker run before the next read

    async def _prepare(self) -> None:
        if not self._blocking.is_open:
            was_connected = self._blocking.connection is not None
            if was_connected and self._blocking.ask_host is None:
                await self._client.refresh()  # another server may serve the stream by now
            await self._blocking.open(("SCRIPT", "LOAD", script("streams/ack").source))
            self._must_sweep = True
            if was_connected:
                self._emit(EventName.RECONNECTED)
        if self._must_sweep or time.monotonic() - self._last_sweep_s > self._sweep_interval_s:
            await self._sweep()

    async def _sweep(self) -> None:
        # Takes messages that are pending with this consumer but not held by it. No read may be under way.
        pending, has_stranded = 0, False
        await self.kill_abandoned_read()
        async with self.claiming:
            async for page in self._commands.own_pending():
                pending += len(page)
                known = set(self._in_flight.unsettled_ids())
                stranded = [entry_id for entry_id in page if entry_id not in known]
                has_stranded = has_stranded or bool(stranded)
                self._in_flight.is_exact = not has_stranded and pending == len(known)
                if stranded:
                    claims, missing = await self._commands.take(stranded, self.has_read)
                    # If nothing was read, they belonged to a dead process with this name.
                    taken = self._in_flight.add_again(claims, missing, are_suspects=not self.has_read)
                    if taken:
                        self._emit(EventName.SWEPT, count=taken, ids=[claim.id for claim in claims])
        self._must_sweep = False
        self._last_sweep_s = time.monotonic()

    def must_sweep(self) -> None:
        """Sweep before the next read: a reply with messages may have been lost."""
        self._must_sweep = True

    async def sweep_soon(self) -> None:
        """Sweep now, even if the reader waits for messages: a claim may have been lost."""
        self._must_sweep = True
        await self._end_read()

    async def unblock(self) -> None:
        """Make a waiting read return now, and start no other."""
        self.quiet.set()
        await self._end_read()

    async def _end_read(self) -> None:
        is_woken = await self._blocking.wake() and not self._blocking.ask_host
        if not is_woken and self._blocking.is_under_way:
            self._blocking.abort()  # the server could not be asked: closing the connection ends the read as well

    async def kill_abandoned_read(self) -> None:
        """Make sure that an abandoned read is not executed later, so that a sweep finds everything it delivered."""
        await self._blocking.kill_abandoned()

    async def close(self) -> None:
        """Close the connection."""
        self._must_sweep = True
        self.quiet.clear()
        await self._blocking.close()
