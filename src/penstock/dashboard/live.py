"""The sampler of this process, and the feed that sends its samples to browsers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from penstock.ops import DeadLetterFilter, FailureGroups, Inspector, Overview, Sample, Sampler
from penstock.shown import to_json

_QUIET_S = 1.0  # after which a feed sends a comment and checks whether it should end
_SHARE = (
    50  # seconds for which causes are shown for each second that finding them took: at most 2% of the server's time
)
_MAX_FILTERS = 50  # whose causes are kept
_MAX_PAGES = 50  # whose values are kept
_OLDEST_PAGE_S = 2.0  # where samples are rarer than this
_LETTERS_BY_CAUSE = 5_000  # that are read for one page: more would keep the server busy for too long


@dataclass(slots=True)
class _CachedPage:
    """The values of a page, or why there are none, for every browser that asks before the next sample."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    values: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    loads: int = 0
    sample: int = 0
    end_s: float = 0.0

    async def load(self, load: Callable[[], Awaitable[dict[str, Any]]], newest_sample: int) -> None:
        try:
            self.values, self.error = await load(), None
        except Exception as error:  # each of the browsers gets it
            self.error = error
        self.loads, self.sample, self.end_s = self.loads + 1, newest_sample, time.monotonic() + _OLDEST_PAGE_S


class LiveData:
    """One sampler for all browsers: however many there are, the server is sampled once."""

    def __init__(self, inspector: Inspector, every_s: float) -> None:
        self._inspector, self.sampler = inspector, Sampler(inspector, every_s=every_s)
        self._failures: dict[tuple[str, Hashable], tuple[float, FailureGroups]] = {}  # each with its end
        self._pages: dict[Hashable, _CachedPage] = {}
        self._finding = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._is_started = self._is_ending = False

    async def start(self) -> None:
        """Start sampling, once; also called by requests, because a mounted application gets no lifespan events."""
        async with self._starting:
            if not self._is_started:
                self._is_started = True
                await self.sampler.sample()  # the first page has something to show
                await self.sampler.__aenter__()

    async def close(self) -> None:
        """Stop sampling."""
        self.end_feeds()
        if self._is_started:
            self._is_started = False
            await self.sampler.__aexit__(None, None, None)

    def end_feeds(self) -> None:
        """End every feed soon: a server that shuts down waits for them."""
        self._is_ending = True

    @property
    def error(self) -> str:
        """Why the last sample has no numbers; '' = it has."""
        samples = self.sampler.samples
        return samples[-1].error if samples else ""

    @property
    def overview(self) -> Overview | None:
        """What the last good sample saw; None before the first one."""
        return self.sampler.overview

    async def page(self, place: Hashable, load: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return the values of a page, or raise: what the browser that asked first got, until there is a new sample.

        Each sample makes every browser ask again, at the same time. Samples that fail do not: the server may be one
        that never answers, and the browsers would wait in turn.
        """
        shared = self._pages.setdefault(place, _CachedPage())
        if len(self._pages) > _MAX_PAGES:
            del self._pages[next(iter(self._pages))]
        loads = shared.loads
        async with shared.lock:
            newest = self.sampler.samples[-1].number if self.sampler.samples else 0
            is_current = shared.sample == newest or (shared.error is not None and self.error != "")
            is_fresh = shared.loads > 0 and is_current and time.monotonic() < shared.end_s
            if shared.loads == loads and not is_fresh:  # nor was it loaded while this browser waited
                await shared.load(load, newest)
            if shared.error is not None:
                raise shared.error.with_traceback(None)
            return shared.values

    async def failures(self, stream: str, matching: DeadLetterFilter, criteria: Hashable) -> FailureGroups:
        """Return dead letters by cause, for all browsers together; they are as old as their cost makes them.

        `criteria` says what the filter was made of: the times of "for the last two hours" differ in each request.
        """
        async with self._finding:
            kept, place, began_s = self._failures, (stream, criteria), time.monotonic()
            if place in kept and began_s < kept[place][0]:
                return kept[place][1]
            found = await self._inspector.dead_letters.failures(stream, matching, most=_LETTERS_BY_CAUSE)
            kept.pop(place, None)
            ended_s = time.monotonic()
            kept[place] = (ended_s + _SHARE * (ended_s - began_s), found)
            if len(kept) > _MAX_FILTERS:
                del kept[next(iter(kept))]
            return found

    def forget(self) -> None:
        """Drop cached causes and pages: an operator has changed something."""
        self._failures, self._pages = {}, {}  # what is being found at this moment goes into the old ones

    async def feed(self) -> AsyncIterator[str]:
        """Yield server-sent events: `history`, with everything that is remembered, then `sample` for each new one."""
        known = self.sampler.samples
        yield _event("history", [point(sample) for sample in known])
        seen = known[-1].number if known else 0
        while not self._is_ending:
            new = [sample for sample in self.sampler.samples if sample.number > seen]
            for sample in new:
                yield _event("sample", point(sample))
                seen = sample.number
            if not new and not await self.sampler.wait(_QUIET_S):
                yield ":\n\n"


def point(sample: Sample) -> dict[str, float | int | str | None]:
    """Return a sample as the charts take it; without numbers where the server did not answer."""
    totals, is_known = sample.totals, not sample.error
    return {
        "at": sample.at_ms / 1000,
        "in_per_s": sample.in_per_s if is_known else None,
        "out_per_s": sample.out_per_s if is_known else None,
        "lag": totals.lag if is_known else None,
        "pending": totals.pending if is_known else None,
        "dead_letters": totals.dead_letters if is_known else None,
        "memory_bytes": sample.used_memory if is_known else None,
        "error": sample.error,
    }


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {to_json(data)}\n\n"
