"""Sampler: looks every few seconds, and keeps the last points for rates and charts."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from typing import Self

from penstock.errors import NotFound, PenstockError, summary_of
from penstock.model import Lag
from penstock.number_checks import check_number, check_seconds
from penstock.ops.condition import StreamCondition, condition_of
from penstock.ops.groups import group_lag, reader_positions
from penstock.ops.inspector import Inspector
from penstock.ops.lag import LIST_STEPS, GroupPosition, Rates, added_since, rates
from penstock.ops.model import (
    GroupLag,
    Overview,
    ReaderCommit,
    ReaderPosition,
    Sample,
    StreamInfo,
    StreamPoint,
    Totals,
)
from penstock.runtime.aio import Flag, TaskGroup

logger = logging.getLogger("penstock.ops")
_SHARE = 50  # seconds of pause for each second that a sample took: at most 2% of the server's time
_SHORT = 5  # points over which a rate is taken: from one to the next it would jump
_COMMITS = 10  # of one reader by ids that are kept


class Sampler:
    """One activity that samples a server for all who look at it.

    `async with Sampler(inspector) as sampler` runs it. Points come every `every_s`, or less often where a sample takes
    long; the last `keep` are kept, and of each stream the last `keep_streams`.
    """

    def __init__(
        self, inspector: Inspector, *, every_s: float = 2.0, keep: int = 300, keep_streams: int = 60, match: str = "*"
    ) -> None:
        check_seconds("every_s", every_s)
        check_number("keep", keep)
        check_number("keep_streams", keep_streams)
        self._inspector, self._every_s, self._match = inspector, every_s, match
        self._samples: deque[Sample] = deque(maxlen=keep)
        self._taken, self._skew_ms = 0, 0  # how far the server's clock was ahead of this machine's
        self._points: dict[str, deque[StreamPoint]] = {}
        self._positions: dict[tuple[str, str], deque[GroupPosition]] = {}
        self._added: dict[str, tuple[StreamInfo, int]] = {}  # what was added since, where the server does not count
        self._miscounted: set[str] = set()  # streams of which nobody knows how much was added since the last sample
        self._reached: dict[
            tuple[str, str], tuple[str, int | None]
        ] = {}  # by readers by ids: position, entries before it
        self._commits: dict[tuple[str, str], deque[ReaderCommit]] = {}
        self._keep_streams = keep_streams
        self._overview: Overview | None = None
        self._stopped, self._sampled = Flag(), Flag()
        self._activities = TaskGroup(self._stopped.set)

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin to sample."""
        self._stopped.clear()
        self._activities.start(self._run)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        self._stopped.set()
        await self._activities.join()
        self._activities.raise_failure()

    async def _run(self) -> None:
        while not self._stopped.is_set():
            began_s = time.monotonic()
            await self.sample()
            took_s = time.monotonic() - began_s
            await self._stopped.wait(max(self._every_s - took_s, _SHARE * took_s))

    async def sample(self) -> Sample:
        """Take one sample now; if that fails, the sample holds the error."""
        try:
            sample = await self._record(await self._inspector.overview(self._match))
        except Exception as error:  # readers would take the old numbers for current ones if sampling ended here
            is_expected = isinstance(error, PenstockError)
            if not self._samples or not self._samples[-1].error:  # once for each outage
                logger.warning("cannot take a sample: %s", error, exc_info=not is_expected)
            text = str(error) if is_expected else summary_of(error)
            at_ms = time.time_ns() // 1_000_000 + self._skew_ms  # all times are those of the server's clock
            sample = Sample(at_ms, Totals(), error=text)
        self._taken += 1
        sample = replace(sample, number=self._taken)
        self._samples.append(sample)
        self._sampled.set()
        return sample

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next sample; return False when the time is over first."""
        self._sampled.clear()
        return await self._sampled.wait(timeout_s)

    # --- what was found -----------------------------------------------------------------------------

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The last samples, oldest first."""
        return tuple(self._samples)

    @property
    def overview(self) -> Overview | None:
        """What the last sample saw; None before the first one."""
        return self._overview

    def points(self, stream: str) -> tuple[StreamPoint, ...]:
        """Return the last points of a stream, oldest first."""
        return tuple(self._points.get(stream, ()))

    def lags(self) -> list[GroupLag]:
        """Return the lags of all groups, with rates and drain times where two samples have been taken."""
        if self._overview is None:
            return []
        return [self._with_rates(group_lag(group)) for stream in self._overview.streams for group in stream.groups]

    def conditions(self) -> list[tuple[StreamInfo, StreamCondition]]:
        """Return the streams of the last sample, and how each of them does."""
        streams = self._overview.streams if self._overview is not None else ()
        by_stream: dict[str, list[GroupLag]] = {}
        for lag in self.lags():
            by_stream.setdefault(lag.stream, []).append(lag)
        return [(stream, condition_of(stream, by_stream.get(stream.name, ()))) for stream in streams]

    def lag(self, stream: str, group: str) -> GroupLag:
        """Return the lag of one group; raise NotFound if the last sample has not seen it."""
        for found in self.lags():
            if (found.stream, found.group) == (stream, group):
                return found
        raise NotFound(f"the last sample has no group {group!r} of stream {stream!r}")

    def positions(self) -> list[ReaderPosition]:
        """Return how far readers by ids have come, with rates where two samples have been taken, and what they did."""
        if self._overview is None:
            return []
        found = []
        for each in reader_positions(self._overview.streams):
            place = (each.stream, each.group)
            commits, known = tuple(reversed(self._commits.get(place, ()))), self._rates(*place)
            found.append(
                replace(each, commits=commits)
                if known is None
                else replace(
                    each, in_per_s=known.in_per_s, out_per_s=known.out_per_s, drain_s=known.drain_s, commits=commits
                )
            )
        return found

    def _with_rates(self, lag: GroupLag) -> GroupLag:
        found = self._rates(lag.stream, lag.group)
        if found is None:
            return lag
        return replace(lag, in_per_s=found.in_per_s, out_per_s=found.out_per_s, drain_s=found.drain_s)

    def _rates(self, stream: str, group: str) -> Rates | None:
        seen = self._positions.get((stream, group))
        if not seen:
            return None
        start = next((each for each in seen if each.is_exact), seen[0]) if seen[-1].is_exact else seen[0]
        return rates(start, seen[-1])

    async def _record(self, found: Overview) -> Sample:
        added = await self._added_by_stream(found)
        names = {stream.name for stream in found.streams}
        groups = {(stream.name, name) for stream in found.streams for name in _groups_of(stream)}
        self._points = {name: kept for name, kept in self._points.items() if name in names}
        self._positions = {place: kept for place, kept in self._positions.items() if place in groups}
        in_per_s = out_per_s = 0.0
        for stream in found.streams:
            point = self._point(found.at_ms, stream, added[stream.name])
            self._points.setdefault(stream.name, deque(maxlen=self._keep_streams)).append(point)
            in_per_s, out_per_s = in_per_s + (point.in_per_s or 0.0), out_per_s + (point.out_per_s or 0.0)
        self._note_commits(found, added)
        self._overview, self._skew_ms = found, round(found.servers[0].clock_skew_s * 1000) if found.servers else 0
        return Sample(
            found.at_ms, found.totals, in_per_s, out_per_s,
            sum(server.used_memory for server in found.servers), sum(server.max_memory for server in found.servers),
            sum(server.ops_per_s for server in found.servers), sum(server.clients for server in found.servers),
        )  # fmt: skip

    def _note_commits(self, found: Overview, added: dict[str, int]) -> None:
        reached: dict[tuple[str, str], tuple[str, int | None]] = {}
        for each in reader_positions(found.streams):
            is_known = each.lag.is_exact and each.stream not in self._miscounted
            place, done = (each.stream, each.group), added[each.stream] - each.lag.count if is_known else None
            position, before = self._reached.get(place, (each.position, done))
            if position != each.position:
                entries = done - before if done is not None and before is not None else None
                commit = ReaderCommit(found.at_ms, each.position, entries)
                self._commits.setdefault(place, deque(maxlen=_COMMITS)).append(commit)
            reached[place] = (each.position, done)
        self._reached = reached
        self._commits = {place: kept for place, kept in self._commits.items() if place in reached}

    def _point(self, at_ms: int, stream: StreamInfo, added: int) -> StreamPoint:
        known: dict[str, Rates] = {}
        for name, (lag, last_delivered_id) in _groups_of(stream).items():
            seen = self._positions.setdefault((stream.name, name), deque(maxlen=_SHORT))
            if stream.name in self._miscounted:
                seen.clear()  # what was added is not known: there is nothing to count from
                continue
            if seen and seen[-1].added > added:
                seen.clear()  # the stream was deleted and created again
            seen.append(GroupPosition(at_ms / 1000, added, lag.count, lag.is_exact, last_delivered_id))
            found = self._rates(stream.name, name)
            if found is not None:
                known[name] = found
        of_stream, lag_of_stream = known.pop("", None), stream.lag
        return StreamPoint(
            at_ms, stream.length, lag_of_stream.count if lag_of_stream else 0, stream.pending, stream.dead_letters,
            of_stream.in_per_s if of_stream else None,
            max((each.out_per_s for each in known.values()), default=None if stream.groups else 0.0),
        )  # fmt: skip

    async def _added_by_stream(self, found: Overview) -> dict[str, int]:
        added = {stream.name: stream.entries_added or 0 for stream in found.streams}
        # Before Redis 7.0 the server does not count.
        uncounted = [each for each in found.streams if each.entries_added is None and not each.has_huge_entries]
        known = [self._added.get(stream.name, (stream, 0)) for stream in uncounted]
        keys = [(self._inspector.streams.key(before.name), before.last_generated_id) for before, _ in known]
        more = await added_since(self._inspector.client, keys, LIST_STEPS)
        self._miscounted = {stream.name for stream in found.streams if stream.has_huge_entries}
        self._miscounted |= {stream.name for stream, new in zip(uncounted, more, strict=True) if new is None}
        self._added = {
            stream.name: (stream, so_far + max(new or 0, stream.length - before.length))
            for stream, (before, so_far), new in zip(uncounted, known, more, strict=True)
        }
        return added | {name: so_far for name, (_, so_far) in self._added.items()}


def _groups_of(stream: StreamInfo) -> dict[str, tuple[Lag, str]]:
    """Return lag and last delivered id of each group; the name "" stands for the stream itself, which has an inflow."""
    return {"": (Lag(0, 0.0), ""), **{group.name: (group.lag, group.last_delivered_id) for group in stream.groups}}
