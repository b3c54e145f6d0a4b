"""Finds every stream that was handed out and has no owner: the guarantee behind all hints."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable

from penstock.balancer.commands import BalancerCommands, Pending
from penstock.balancer.config import BalancerConfig
from penstock.balancer.holdings import Holdings
from penstock.balancer.messages import LBSInfo, LBSInputMessage
from penstock.balancer.notices import StreamExpired
from penstock.delivery.decoding import Rejected
from penstock.errors import MalformedEntry
from penstock.policy import Reason
from penstock.runtime.aio import next_tick

_KEPT_AWAY_S = 5.0  # how long a consumer leaves to others what it has handed over


class Sweep:
    """Looks through the pending entries, page by page, for those whose lock is gone."""

    def __init__(self, commands: BalancerCommands, holdings: Holdings, config: BalancerConfig) -> None:
        self._commands, self._holdings, self._config = commands, holdings, config
        self._known: dict[str, StreamExpired] = {}
        self._handed_over: dict[str, float] = {}

    def keep_away(self, entry_id: str) -> None:
        """Leave an entry to others for a while: this consumer has handed it over."""
        now_s = time.monotonic()
        for old, until_s in self._handed_over.copy().items():  # several threads may hand over at once
            if until_s <= now_s:
                self._handed_over.pop(old, None)
        self._handed_over[entry_id] = now_s + _KEPT_AWAY_S

    def concerns_us(self, entry: Pending) -> bool:
        """Tell whether an entry without a lock may be ours to claim: not if we own it or have just handed it over."""
        if self._holdings.has_entry(entry.id):
            return False
        # Whoever took it since has died with it: nobody is left to leave it to.
        return entry.consumer != self._commands.me or self._handed_over.get(entry.id, 0.0) <= time.monotonic()

    async def run_once(self, on_found: Callable[[list[StreamExpired]], Awaitable[None]]) -> int:
        """Look through all pending entries; tell of those without an owner page by page; return how many there are."""
        start, found = "-", 0
        seen: set[str] = set()
        while True:
            page = await self._commands.pending(start, self._config.lbs_recovery_count)
            seen.update(entry.id for entry in page)
            orphans = await self.orphans([entry for entry in page if self._may_be_orphan(entry)])
            found += len(orphans)
            if orphans:
                await on_found(orphans)
            if len(page) < self._config.lbs_recovery_count:
                break
            start = f"({page[-1].id}"
            await next_tick()
        self._known = {entry_id: hint for entry_id, hint in self._known.items() if entry_id in seen}
        return found

    def _may_be_orphan(self, entry: Pending) -> bool:
        # One that was read a moment ago is about to be locked by whoever read it.
        return entry.idle_ms >= self._config.lock_ttl_ms and self.concerns_us(entry)

    async def orphans(self, entries: list[Pending]) -> list[StreamExpired]:
        """Return those of the entries whose lock is gone, in random order: peers begin at different ends."""
        hints = await self._describe(entries)
        are_locked = await self._commands.are_locked([hint.payload for hint in hints])
        found = [hint for hint, is_locked in zip(hints, are_locked, strict=True) if not is_locked]
        random.shuffle(found)
        return found

    async def _describe(self, entries: list[Pending]) -> list[StreamExpired]:
        unknown = [entry for entry in entries if entry.id not in self._known]
        for entry, fields in zip(unknown, await self._commands.bodies([entry.id for entry in unknown]), strict=True):
            if fields is None:
                await self._commands.forget(entry.id)
                continue
            try:
                message = LBSInputMessage.of_entry(fields)
            except MalformedEntry as error:
                rejected = Rejected(entry.id, Reason.DECODE_ERROR, error, entry.deliveries, 0, fields)
                await self._commands.dead_letter(rejected)
                continue
            self._known[entry.id] = StreamExpired(LBSInfo(message.data_stream_name, entry.id), message.info)
        return [self._known[entry.id] for entry in entries if entry.id in self._known]
