"""Consumer groups: lag, consumers, position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from penstock import envelope, ids
from penstock.delivery.group import ConsumerGroup, consumers_in
from penstock.errors import ConfigurationError, NotFound
from penstock.keys import check_name
from penstock.number_checks import check_number
from penstock.ops.catalogue import MAX_GROUPS, Catalogue, StreamSnapshot, missing_stream
from penstock.ops.lag import VERDICT_STEPS, GroupPosition, added_since, rates
from penstock.ops.model import (
    MAX_CONSUMERS,
    Consumer,
    ConsumerState,
    GroupInfo,
    GroupKind,
    GroupLag,
    Page,
    ReaderPosition,
    StreamInfo,
)
from penstock.ops.model.groups import dead_after_ms as usual_dead_after_ms
from penstock.ops.streams import Bound, Streams
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.runtime.aio import pause
from penstock.shown import command_line


class Groups:
    """The consumer groups of one server."""

    def __init__(self, client: StreamClient, catalogue: Catalogue, streams: Streams) -> None:
        self._client, self._catalogue, self._streams = client, catalogue, streams

    async def of(self, stream: str) -> tuple[GroupInfo, ...]:
        """Return the first 64 groups of a stream; a lag that takes long to count is a bound."""
        return (await self.page(stream)).items

    async def page(self, stream: str, *, limit: int = MAX_GROUPS, cursor: str = "") -> Page[GroupInfo]:
        """Return groups of a stream, up to 64 at once; a lag that takes long to count is a bound."""
        check_number("limit", limit)
        first, limit = envelope.number(cursor) or 0, min(limit, MAX_GROUPS)
        found = await self._streams.describe([stream], (), most_groups=limit, first_group=first)
        if not found:
            await self._streams.info(stream, memory=False)  # raises NotFound, or PermissionDenied
            return Page(())
        groups, last = found[0].groups, first + len(found[0].groups)
        return Page(groups, str(last) if groups and last < found[0].groups_count else "")

    async def info(self, stream: str, group: str) -> GroupInfo:
        """Return one group, with its lag counted; raise NotFound if there is none."""
        found = await self._known(stream, group)
        return found if found.lag.is_exact else replace(found, lag=await self._group(stream, group).lag())

    async def _known(self, stream: str, group: str) -> GroupInfo:
        check_name("group", group)
        found = await self._streams.describe([stream], (), only_group=group)
        if not found:
            await self._streams.info(stream, memory=False)  # raises NotFound where there is no stream
        if found and found[0].groups:
            return found[0].groups[0]
        raise NotFound(
            f"stream {stream!r} has no group {group!r}; list its groups with {command_line('group ls', stream)}"
        )

    def _group(self, stream: str, group: str) -> ConsumerGroup:
        return ConsumerGroup(self._client, stream, group)

    # --- lag ----------------------------------------------------------------------------------------

    async def lag(self, stream: str, group: str, *, over_s: float = 0.0) -> GroupLag:
        """Return how far a group is behind; with `over_s` also rates and drain time, from two samples so far apart."""
        first = await self.info(stream, group)
        if not over_s:
            return group_lag(first)
        before = await self._snapshot(stream)
        await pause(over_s)
        last = await self.info(stream, group)
        after = await self._snapshot(stream)
        added, counted = after.entries_added, before.entries_added
        if added is None or counted is None:  # before Redis 7.0, or of huge entries, which are not looked at
            if not before.last_generated_id:
                return group_lag(last)
            since = (self._catalogue.keys(stream).stream, before.last_generated_id)
            [found_since] = await added_since(self._client, [since], VERDICT_STEPS)
            if found_since is None:
                return group_lag(last)
            added, counted = max(found_since, after.length - before.length), 0
        start = _at_snapshot(before, counted, first)
        found = rates(start, _at_snapshot(after, added, last))
        if found is None:
            return group_lag(last)
        return replace(group_lag(last), in_per_s=found.in_per_s, out_per_s=found.out_per_s, drain_s=found.drain_s)

    async def _snapshot(self, stream: str) -> StreamSnapshot:
        found = (await self._catalogue.snapshots([stream])).get(stream)
        if found is None:
            raise missing_stream(stream)
        return found

    async def lags(self, match: str = "*") -> list[GroupLag]:
        """Return the lags of all groups of the streams that a pattern matches; see Sampler for their rates."""
        streams, _, _ = await self._streams.overview(match, count_lags=True)
        return [group_lag(group) for stream in streams for group in stream.groups]

    async def positions(self, match: str = "*") -> list[ReaderPosition]:
        """Return how far Spark queries, archives and other readers by ids have come; see Sampler for their rates."""
        streams, _, _ = await self._streams.overview(match)
        return reader_positions(streams)

    # --- consumers ----------------------------------------------------------------------------------

    async def consumers(
        self,
        stream: str,
        group: str,
        *,
        state: ConsumerState | None = None,
        dead_after_ms: int | None = None,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[Consumer]:
        """Return the consumers of a group by name; raise NotFound if there is no such group.

        One that is silent for longer than `dead_after_ms` is dead; None is a minute, and six of message queues. The
        consumers of a group with more than 2,000 are not listed: its page is empty.
        """
        check_number("limit", limit)
        check_name("group", group)
        key, snapshots = (
            self._catalogue.keys(stream).stream,
            await self._catalogue.snapshots([stream], only_group=group),
        )
        if any(each.consumers > MAX_CONSUMERS for snapshot in snapshots.values() for each in snapshot.groups):
            return Page(())
        async with self._catalogue.group_must_exist(stream, group):
            rows = await self._client.call(key, "XINFO", "CONSUMERS", key, group)
        found = [
            consumer
            for consumer in sorted(consumers_of(stream, group, rows, dead_after_ms), key=lambda each: each.name)
            if consumer.name > cursor and state in {None, consumer.state}
        ]
        return Page(tuple(found[:limit]), found[limit - 1].name if len(found) > limit else "")

    async def remove_dead_consumers(self, stream: str, group: str, *, idle_ms: int = 3_600_000) -> list[str]:
        """Remove consumers that hold no messages and have been idle for `idle_ms`; return their names."""
        await self._known(stream, group)
        return await self._group(stream, group).remove_dead_consumers(idle_ms)

    # --- changes ------------------------------------------------------------------------------------

    async def seek(self, stream: str, group: str, to: Bound) -> str:
        """Move a group, so that it reads next what follows an id or comes after a time; return where it is now.

        `-` is the beginning of the stream, `+` its end. What is pending stays pending.
        """
        await self._known(stream, group)
        key = self._catalogue.keys(stream).stream
        position = _position(to)
        await self._client.call(key, "XGROUP", "SETID", key, group, position, repeat=Repeat.IDEMPOTENT)
        return (await self._known(stream, group)).last_delivered_id

    async def delete(self, stream: str, group: str, *, force: bool = False) -> int:
        """Delete a group and what is kept for it; return how many pending messages went with it.

        Raises ConfigurationError if messages are pending or consumers are alive, unless `force` is true.
        """
        found = await self._known(stream, group)
        if found.pending and not force:
            raise ConfigurationError(
                f"group {group!r} of stream {stream!r} has {found.pending} pending messages, which would be "
                "lost: pass force=True (--force) to delete it anyway"
            )
        if not force and (alive := await self._alive(found)):
            raise ConfigurationError(
                f"group {group!r} of stream {stream!r} has live consumers ({alive}), which would create it again at "
                "the beginning of the stream and handle all its entries again: stop them and wait until they count as "
                "dead, or pass force=True (--force) to delete it anyway"
            )
        keys = self._catalogue.keys(stream)
        kept = [keys.position(group), keys.retries(group), keys.attempts(group)]
        await self._client.run("ops/delete_group", [keys.stream, *kept], [group], Repeat.IDEMPOTENT)
        return found.pending

    async def _alive(self, group: GroupInfo) -> int:
        if group.consumers > MAX_CONSUMERS:
            return group.consumers  # too many to list
        found = await self.consumers(group.stream, group.name, limit=MAX_CONSUMERS)
        return sum(each.state is not ConsumerState.DEAD for each in found.items)


def reader_positions(streams: Sequence[StreamInfo]) -> list[ReaderPosition]:
    """Return the positions of readers by ids: the groups without consumers."""
    return [
        ReaderPosition(stream.name, group.name, group.kind, group.last_delivered_id, group.lag)
        for stream in streams
        for group in stream.groups
        if group.kind is not GroupKind.CONSUMERS
    ]


def group_lag(group: GroupInfo) -> GroupLag:
    """Return the lag of a group by itself, without rates."""
    lag = group.lag
    drain_s = 0.0 if lag.count == 0 else None
    return GroupLag(group.stream, group.name, lag.count, lag.is_exact, lag.age_s, group.pending, drain_s=drain_s)


def consumers_of(stream: str, group: str, rows: Reply, dead_after_ms: int | None = None) -> list[Consumer]:
    """Read a reply of XINFO CONSUMERS."""
    longest_ms = usual_dead_after_ms(group) if dead_after_ms is None else dead_after_ms
    return [
        Consumer(stream, group, it.name, it.pending, it.idle_ms, _state_of(it.pending, it.idle_ms, longest_ms))
        for it in consumers_in(rows)
    ]


def _state_of(pending: int, idle_ms: int, dead_after_ms: int) -> ConsumerState:
    if idle_ms > dead_after_ms:
        return ConsumerState.DEAD
    return ConsumerState.ACTIVE if pending else ConsumerState.IDLE


def _position(to: Bound) -> str:
    if isinstance(to, datetime):
        to = round(to.timestamp() * 1000)
    if isinstance(to, int):
        return ids.before(f"{to}-0")
    if to in {"-", "+"}:
        return ids.ZERO if to == "-" else "$"
    ids.parse(to)
    return to


def _at_snapshot(snapshot: StreamSnapshot, added: int, group: GroupInfo) -> GroupPosition:
    return GroupPosition(snapshot.now_ms / 1000, added, group.lag.count, group.lag.is_exact, group.last_delivered_id)
