"""Streams: lists, entries, and the overview of everything."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from penstock import envelope, ids
from penstock.errors import NotFound, PenstockError
from penstock.keys import BalancerKeys, QueueKeys, StreamKeys, TaskKeys
from penstock.model import Lag
from penstock.number_checks import check_number
from penstock.ops.catalogue import (
    MAX_GROUPS,
    MAX_PER_PAGE,
    STEP,
    Catalogue,
    GroupSnapshot,
    StreamSnapshot,
    checked_id,
    checked_text,
    kind_of,
    missing_stream,
)
from penstock.ops.entries import EntryRange, read_entries, read_entry
from penstock.ops.lag import LIST_STEPS, VERDICT_STEPS, measure
from penstock.ops.model import Entry, FieldValue, GroupInfo, GroupKind, Page, StreamInfo, StreamKind, Totals
from penstock.ops.payloads import Row, fields_of, shown
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask, number_or

ARCHIVE_GROUP = "penstock-archive"
_SAMPLES = 5
_SILENT_MS = 10_000  # idle time beyond which pending messages are checked for retries
_CHECKED = 50  # oldest pending messages of a group that are checked

Bound = str | int | datetime  # an id, a time in ms, or a time


class Streams:
    """The streams of one server."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    def key(self, name: str) -> str:
        """Return the key of a stream: its name behind the prefix of the client."""
        return self._catalogue.keys(name).stream

    async def names(self, match: str = "*") -> list[str]:
        """Return the names of the streams that a glob pattern matches, sorted."""
        return list(await self._catalogue.names(match))

    async def page(
        self, match: str = "*", kind: StreamKind | None = None, *, limit: int = 100, cursor: str = ""
    ) -> Page[StreamInfo]:
        """Return streams by name, with their groups; a lag that takes long to count is a bound."""
        check_number("limit", limit)
        names = await self._catalogue.names()
        task_queues = await self._catalogue.task_queues(names)
        names = [name for name in fnmatch.filter(names, match) if name > cursor]
        found, step = list[StreamInfo](), limit if kind is None else max(limit, STEP)
        candidates = names[: max(limit, MAX_PER_PAGE)]
        for start in range(0, len(candidates), step):
            for info in await self.describe(candidates[start : start + step], task_queues):
                if kind is None or info.kind is kind:
                    found.append(info)
                    if len(found) == limit:
                        return Page(tuple(found), info.name if info.name != names[-1] else "")
        return Page(tuple(found), candidates[-1] if len(candidates) < len(names) else "")

    async def info(self, name: str, *, memory: bool = True) -> StreamInfo:
        """Return one stream and its groups, with the memory that it takes; raise NotFound if there is none."""
        found = await self.describe([name], await self._catalogue.task_queues([name]))
        if not found:
            key = self._catalogue.keys(name).stream
            await self._client.call(key, "EXISTS", key)  # raises PermissionDenied if the user may not read it
            raise missing_stream(name)
        return replace(found[0], memory_bytes=await self.memory(name)) if memory else found[0]

    async def memory(self, name: str) -> int | None:
        """Return the bytes that a stream takes, estimated by the server; None = the user may not ask."""
        key = self._catalogue.keys(name).stream
        [reply] = await ask(self._client, [(key, ("MEMORY", "USAGE", key, "SAMPLES", _SAMPLES))])
        return None if reply is None or isinstance(reply, PenstockError) else int(reply)

    async def describe(
        self, names: Sequence[str], task_queues: Collection[str], lag_steps: int = LIST_STEPS, *,
        most_groups: int = MAX_GROUPS, only_group: str = "", first_group: int = 0,
    ) -> list[StreamInfo]:  # fmt: skip
        """Return those streams that exist, with their groups or one; each hundred takes a few round trips."""
        snapshots = list((await self._catalogue.snapshots(names, most_groups, only_group, first_group)).values())
        groups = [
            (self._catalogue.keys(snapshot.name).stream, snapshot, group)
            for snapshot in snapshots
            for group in snapshot.groups
        ]
        lags = await measure(self._client, groups, lag_steps)
        waiting = [
            (key, ("ZCARD", self._catalogue.keys(snapshot.name).retries(group.name))) for key, snapshot, group in groups
        ]
        retries = [number_or(reply) for reply in await ask(self._client, waiting)]
        infos = iter(zip(lags, retries, await self._longest_idle(groups, retries), strict=True))
        kinds = [kind_of(snapshot, task_queues) for snapshot in snapshots]
        dead = [self._dead_letters_of(snapshot, *kind) for snapshot, kind in zip(snapshots, kinds, strict=True)]
        keys = [self._catalogue.keys(name).stream if name else "" for name in dead]
        lengths = iter(await ask(self._client, [(key, ("XLEN", key)) for key in keys if key]))
        found: list[StreamInfo] = []
        for snapshot, (kind, owner), dead_letters in zip(snapshots, kinds, dead, strict=True):
            count = number_or(next(lengths)) if dead_letters else 0
            described = tuple(_group_info(snapshot, group, *next(infos)) for group in snapshot.groups)
            found.append(
                StreamInfo(
                    snapshot.name, kind, owner, snapshot.length, snapshot.first_id, snapshot.last_id,
                    snapshot.last_generated_id, snapshot.entries_added, described, snapshot.groups_count,
                    dead_letters if count else "", count, has_huge_entries=snapshot.has_huge_entries,
                )
            )  # fmt: skip
        return found

    async def _longest_idle(
        self, groups: Sequence[tuple[str, StreamSnapshot, GroupSnapshot]], retries: Sequence[int]
    ) -> list[_PendingIdle]:
        """Return, for each group, the pending message that has been idle the longest.

        A message that waits for a retry is not renewed: its idle time starts when it is due.
        """
        found = [_PendingIdle(group.oldest_pending_id, group.oldest_pending_idle_ms) for _, _, group in groups]
        long_idle = [place for place, count in enumerate(retries) if count and found[place].ms > _SILENT_MS]
        selected = [(groups[place][0], groups[place][2].name) for place in long_idle]
        rows = await ask(self._client, [(key, ("XPENDING", key, name, "-", "+", _CHECKED)) for key, name in selected])
        known = [(groups[place], place, each) for place, each in zip(long_idle, rows, strict=True) if _is_some(each)]
        due = [
            (key, ("ZMSCORE", self._catalogue.keys(snapshot.name).retries(group.name), *(row[0] for row in each)))
            for (key, snapshot, group), _, each in known
        ]
        for ((_, snapshot, _), place, each), scores in zip(known, await ask(self._client, due), strict=True):
            if _is_some(scores):
                found[place] = max(
                    (
                        _PendingIdle(
                            row[0].decode(),
                            int(row[2]) if at_ms is None else max(0, snapshot.now_ms - int(float(at_ms))),
                        )
                        for row, at_ms in zip(each, scores, strict=True)
                    ),
                    key=lambda idle: idle.ms,
                )
        return found

    def _dead_letters_of(self, snapshot: StreamSnapshot, kind: StreamKind, owner: str) -> str:
        if kind is StreamKind.STREAM:
            return StreamKeys(snapshot.name).default_dead_letters()
        if kind is StreamKind.QUEUE:
            return QueueKeys(snapshot.name).dead_letter
        if (
            kind is StreamKind.TASKS and snapshot.name == TaskKeys.of(owner, "", self._client.is_cluster).stream_name()
        ):  # this lane stands for all
            return TaskKeys.of(owner, "", self._client.is_cluster).dead
        if kind is StreamKind.SERVICE and not self._client.prefix:
            return BalancerKeys(owner).dead_letters
        return ""

    async def overview(
        self, match: str = "*", *, limit: int | None = None, count_lags: bool = False
    ) -> tuple[list[StreamInfo], Totals, int]:
        """Return the streams, up to `limit` of them, their sums, and the number of streams.

        With `count_lags` lags are counted for about a second, for a verdict; else those that take long are bounds.
        """
        names = await self._catalogue.names(match)
        task_queues = await self._catalogue.task_queues(names)
        found = await self.describe(names[:limit], task_queues, VERDICT_STEPS if count_lags else LIST_STEPS)
        return found, totals(found), len(names)

    # --- entries ------------------------------------------------------------------------------------

    async def entries(
        self,
        name: str,
        *,
        start: Bound = "-",
        end: Bound = "+",
        newest_first: bool = True,
        text: str = "",
        limit: int = 20,
        cursor: str = "",
        max_value_bytes: int = 4_096,
    ) -> Page[Entry]:
        """Return entries between two ids or times, those in which a value contains the text if one is given.

        Of each value no more than `max_value_bytes` are read.
        """
        check_number("limit", limit)
        check_number("max_value_bytes", max_value_bytes)
        key, first, last = self._catalogue.keys(name).stream, bound(start), bound(end)
        if cursor:
            first, last = (first, ids.before(cursor)) if newest_first else (ids.after(cursor), last)
        ends = (last, first) if newest_first else (first, last)
        wanted = EntryRange(*ends, limit, max_value_bytes, newest_first, checked_text(text))
        rows, further = await read_entries(self._client, key, wanted)
        if not rows and not further and not await self._client.call(key, "EXISTS", key):
            raise missing_stream(name)
        return Page(tuple(self._entry(name, key, row) for row in rows), further)

    async def entry(self, name: str, entry_id: str, *, max_value_bytes: int = 1 << 20) -> Entry:
        """Return one entry; raise NotFound if it is not in the stream."""
        check_number("max_value_bytes", max_value_bytes)
        key = self._catalogue.keys(name).stream
        row = await read_entry(self._client, key, checked_id(entry_id), max_value_bytes)
        if row is None and not await self._client.call(key, "EXISTS", key):
            raise missing_stream(name)
        if row is None:
            raise NotFound(f"stream {name!r} has no entry {entry_id}: it was deleted or trimmed, or never existed")
        return self._entry(name, key, row)

    async def value(self, name: str, entry_id: str, field: str = envelope.DATA) -> bytes:
        """Return one whole value of an entry, for a download; raise NotFound if there is none."""
        key = self._catalogue.keys(name).stream
        checked_id(entry_id)
        rows = await self._client.call(key, "XRANGE", key, entry_id, entry_id, "COUNT", 1)
        value = envelope.as_mapping(rows[0][1]).get(field) if rows else None
        if value is None:
            raise NotFound(f"entry {entry_id} of stream {name!r} has no field {field!r}")
        return value

    def _entry(self, name: str, key: str, row: Row) -> Entry:
        fields = fields_of(row)
        by_name: dict[str, FieldValue] = {each.name: each for each in fields}

        def text(field: str) -> str | None:
            return envelope.text(by_name[field].value) if field in by_name else None

        headers = by_name.get(envelope.HEADERS)
        return Entry(
            name, row[0].decode(), fields, shown(by_name, key, self._client.protection), text(envelope.KEY),
            text(envelope.MESSAGE_ID), envelope.decode_headers(headers.value if headers else None),
        )  # fmt: skip


def bound(value: Bound) -> str:
    """Return an end of a range as the server takes it; raise ConfigurationError for what is none."""
    if isinstance(value, datetime):
        return str(max(0, round(value.timestamp() * 1000)))
    text = str(value)
    if text not in {"-", "+"}:
        ids.parse(text)
    return text


def totals(streams: Sequence[StreamInfo]) -> Totals:
    """Return the sums over streams; entries of dead letters and results are not work that waits."""
    groups = [group for stream in streams for group in stream.groups]
    work = [stream for stream in streams if stream.kind not in _NO_WORK]
    return Totals(
        streams=len(streams),
        entries=sum(stream.length for stream in work),
        groups=len(groups),
        consumers=sum(group.consumers for group in groups),
        pending=sum(group.pending for group in groups),
        lag=sum(group.lag.count for group in groups),
        is_lag_exact=all(group.lag.is_exact for group in groups),
        retries_waiting=sum(group.retries_waiting for group in groups),
        dead_letters=sum(count for _, count in dead_letters_of(streams).values()),
        oldest_unread_s=max((group.lag.age_s for group in groups), default=0.0),
    )


def dead_letters_of(streams: Sequence[StreamInfo]) -> dict[str, tuple[str, int]]:
    """Return the dead-letter streams among streams, and those of the streams: by name, with owner and length each.

    A pattern that matches a stream need not match its dead letters.
    """
    of_sources = {
        each.dead_letters_stream: (each.owner or each.name, each.dead_letters)
        for each in streams
        if each.dead_letters_stream
    }
    listed = {each.name: (each.owner, each.length) for each in streams if each.kind is StreamKind.DEAD_LETTERS}
    return of_sources | listed


_NO_WORK = {StreamKind.DEAD_LETTERS, StreamKind.RESULTS, StreamKind.QUEUE_LOG}


class _PendingIdle(NamedTuple):
    """How long a pending message has been idle."""

    message_id: str
    ms: int


def _is_some(reply: Reply) -> bool:
    return isinstance(reply, list) and bool(reply)


def _group_info(
    snapshot: StreamSnapshot, group: GroupSnapshot, lag: Lag, retries: int, idle: _PendingIdle
) -> GroupInfo:
    return GroupInfo(
        snapshot.name, group.name, group_kind(group), group.consumers, group.pending, group.last_delivered_id, lag,
        idle.message_id, idle.ms, retries, group.entries_read,
    )  # fmt: skip


def group_kind(group: GroupSnapshot) -> GroupKind:
    """Return who reads through a group; one that never had a consumer marks the position of a reader by ids."""
    if group.name == ARCHIVE_GROUP or group.name.startswith(f"{ARCHIVE_GROUP}-"):
        return GroupKind.ARCHIVE
    is_position = not group.consumers and not group.pending and group.last_delivered_id != ids.ZERO
    return GroupKind.POSITION if is_position else GroupKind.CONSUMERS
