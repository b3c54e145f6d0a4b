"""Retention: who pins a stream's memory, what can be trimmed, and trimming that never takes entries from a group."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import ids
from penstock.delivery.janitor import count_after
from penstock.errors import PenstockError
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue, GroupSnapshot, StreamSnapshot, kind_of, missing_stream
from penstock.ops.groups import consumers_of
from penstock.ops.lag import measure
from penstock.ops.model import (
    MAX_CONSUMERS,
    ConsumerState,
    GroupKind,
    Page,
    Pin,
    RetentionInfo,
    RetentionPolicy,
    TrimReport,
)
from penstock.ops.streams import ARCHIVE_GROUP, group_kind
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask
from penstock.redis.retry import Repeat

_SAMPLES = 5
_MANY_GROUPS = 1_000  # of one stream
_NO_ARCHIVE = f"no archive reads the stream: no group is named {ARCHIVE_GROUP} or {ARCHIVE_GROUP}-..."


class Retention:
    """What is kept, and for whom."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    async def report(self, stream: str) -> RetentionInfo:
        """Return who pins a stream and what could go, counted; raise NotFound if there is no such stream."""
        snapshots = await self._catalogue.snapshots([stream], _MANY_GROUPS)
        if stream not in snapshots:
            raise missing_stream(stream)
        [found] = await self._described([snapshots[stream]])
        return found

    async def page(self, match: str = "*", *, limit: int = 100, cursor: str = "") -> Page[RetentionInfo]:
        """Return the same for many streams, by name; where counting takes long, `finished` is a lower bound."""
        check_number("limit", limit)
        names = [name for name in await self._catalogue.names(match) if name > cursor]
        snapshots = await self._catalogue.snapshots(names[:limit])
        found = await self._described(list(snapshots.values()))
        return Page(tuple(found), names[limit - 1] if len(names) > limit else "")

    async def _described(self, snapshots: Sequence[StreamSnapshot]) -> list[RetentionInfo]:
        client, keys = self._client, [self._catalogue.keys(snapshot.name).stream for snapshot in snapshots]
        task_queues = await self._catalogue.task_queues([snapshot.name for snapshot in snapshots])
        silent = await self._silent(snapshots)
        groups = [
            (key, snapshot, group) for key, snapshot in zip(keys, snapshots, strict=True) for group in snapshot.groups
        ]
        lags = iter(await measure(client, groups))
        floors = [floor_of(snapshot) for snapshot in snapshots]
        # Entries before the floor are finished: count them as if a group had read up to there.
        marks = [
            (key, snapshot, _read_up_to(snapshot, floor))
            for key, snapshot, floor in zip(keys, snapshots, floors, strict=True)
            if floor
        ]
        needed = iter(await measure(client, marks))
        memory = await ask(client, [(key, ("MEMORY", "USAGE", key, "SAMPLES", _SAMPLES)) for key in keys])
        found: list[RetentionInfo] = []
        for snapshot, floor, used in zip(snapshots, floors, memory, strict=True):
            kept = next(needed) if floor else None
            finished = max(0, snapshot.length - kept.count) if kept else 0
            size = None if used is None or isinstance(used, PenstockError) else int(used)
            found.append(
                RetentionInfo(
                    snapshot.name, kind_of(snapshot, task_queues)[0], snapshot.length, size, floor, finished,
                    _share(size, finished, snapshot.length), kept.is_exact if kept else True,
                    tuple(_pin(snapshot, group, floor, next(lags).count, silent) for group in snapshot.groups),
                )
            )  # fmt: skip
        return found

    async def _silent(self, snapshots: Sequence[StreamSnapshot]) -> set[tuple[str, str]]:
        # Groups whose consumers have all been silent.
        groups = [(snapshot.name, group) for snapshot in snapshots for group in snapshot.groups]
        selected = [(name, group) for name, group in groups if 0 < group.consumers <= MAX_CONSUMERS]
        keys = [self._catalogue.keys(name).stream for name, _ in selected]
        questions = [
            (key, ("XINFO", "CONSUMERS", key, each.name)) for key, (_, each) in zip(keys, selected, strict=True)
        ]
        silent = {(name, group.name) for name, group in groups if not group.consumers}
        for (name, group), rows in zip(selected, await ask(self._client, questions), strict=True):
            if isinstance(rows, PenstockError):
                continue
            states = {each.state for each in consumers_of(name, group.name, rows)}
            if states <= {ConsumerState.DEAD}:
                silent.add((name, group.name))
        return silent

    # --- trimming -----------------------------------------------------------------------------------

    async def trim(self, stream: str, policy: RetentionPolicy, *, dry_run: bool = False) -> TrimReport:
        """Trim what the policy does not keep and no group needs; without any limit, everything that is finished.

        Guarantees: what a group, a Spark query or an archive has not settled stays. A stream without a group has
        nothing that is finished.
        """
        for name in ("max_age_s", "max_length", "max_bytes"):
            if (value := getattr(policy, name)) is not None:
                check_number(name, value, is_whole=name != "max_age_s", may_be_zero=True)
        found = await self.report(stream)
        if not found.floor_id:
            why = (
                "has no group, so all its entries count as unread"
                if not found.pins
                else "has too many groups to examine"
            )
            return TrimReport(stream, 0, 0, True, dry_run, note=f"the stream {why}")
        if policy.archived_only and not any(pin.kind is GroupKind.ARCHIVE for pin in found.pins):
            return TrimReport(stream, 0, 0, True, dry_run, note=_NO_ARCHIVE)
        finished, is_exact = await self._finished(found)
        excess = await self._excess(found, policy, finished)
        removable = min(excess, finished)
        held = tuple(pin.group for pin in found.pins if pin.is_lowest) if excess > finished else ()
        size = _share(found.memory_bytes, removable, found.length)
        if dry_run:
            return TrimReport(stream, removable, size, is_exact, dry_run, excess, held)
        gone = 0
        while gone < removable:
            args = [removable - gone]
            step = int(await self._client.run("streams/trim", [self._catalogue.keys(stream).stream], args, Repeat.ONCE))
            if not step:
                break
            gone += step
        return TrimReport(stream, gone, _share(found.memory_bytes, gone, found.length), True, dry_run, excess, held)

    async def _finished(self, found: RetentionInfo) -> tuple[int, bool]:
        if found.is_exact:
            return found.finished, True
        needed = await count_after(self._client, self._catalogue.keys(found.stream).stream, ids.before(found.floor_id))
        return max(0, needed.length - needed.most), needed.is_exact

    async def _excess(self, found: RetentionInfo, policy: RetentionPolicy, finished: int) -> int:
        beyond = []
        if policy.max_length is not None:
            beyond.append(found.length - policy.max_length)
        if policy.max_bytes is not None and found.memory_bytes:
            share = (found.memory_bytes - policy.max_bytes) / found.memory_bytes
            beyond.append(round(found.length * share))
        if policy.max_age_s is not None:
            key = self._catalogue.keys(found.stream).stream
            [seconds, _] = await self._client.call(key, "TIME")
            cutoff = max(0, int(seconds) * 1000 - round(policy.max_age_s * 1000))
            younger = await count_after(self._client, key, ids.before(f"{cutoff}-0"))
            beyond.append(younger.length - younger.most)
        return max(0, *beyond) if beyond else finished


def floor_of(snapshot: StreamSnapshot) -> str:
    """Return the first id that some group needs; '' = the stream has no group."""
    floors = [needed_by(group) for group in snapshot.groups]
    return min(floors, key=ids.parse) if floors and snapshot.groups_count == len(snapshot.groups) else ""


def _read_up_to(snapshot: StreamSnapshot, floor: str) -> GroupSnapshot:
    is_all_needed = not snapshot.first_id or ids.parse(floor) <= ids.parse(snapshot.first_id)
    unread = snapshot.first_id if is_all_needed and not snapshot.has_huge_entries else "?"
    return GroupSnapshot("", 0, 0, ids.before(floor), None, None, unread, "", 0)


def needed_by(group: GroupSnapshot) -> str:
    """Return the first id that a group needs: its oldest pending entry, or what follows the last one it was handed."""
    unread = ids.after(group.last_delivered_id)
    return min(unread, group.oldest_pending_id or unread, key=ids.parse)


def _pin(snapshot: StreamSnapshot, group: GroupSnapshot, floor: str, lag: int, silent: set[tuple[str, str]]) -> Pin:
    needed, kind = needed_by(group), group_kind(group)
    is_behind = bool(group.pending or lag)
    since = group.oldest_pending_id or (group.first_unread_id if group.first_unread_id != "?" else needed)
    age_s = max(0, snapshot.now_ms - ids.parse(since)[0]) / 1000 if is_behind and since else 0.0
    is_dead = is_behind and kind is GroupKind.CONSUMERS and (snapshot.name, group.name) in silent
    return Pin(group.name, kind, needed, group.pending, lag, age_s, needed == floor, is_dead)


def _share(size: int | None, part: int, whole: int) -> int | None:
    return None if size is None else size * part // whole if whole else 0
