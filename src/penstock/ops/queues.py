"""Message queues: their numbers, samples of their messages, purging."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigurationError
from penstock.keys import QueueKeys
from penstock.model import Lag
from penstock.number_checks import check_number
from penstock.ops.model import GroupKind, Page, QueueInfo, StreamInfo, StreamKind
from penstock.ops.streams import Streams
from penstock.queue.administration import Administration, stats_of
from penstock.queue.model import GROUP, MessageData, QueueStats
from penstock.redis.client import StreamClient
from penstock.redis.reading import newest_id, run_many
from penstock.redis.translate import checked


class MessageQueues:
    """The message queues of one server."""

    def __init__(self, client: StreamClient, streams: Streams) -> None:
        self._client, self._streams = client, streams

    async def all(self, match: str = "*", *, key_separator: str = "::") -> list[QueueInfo]:
        """Return all message queues that have been read from, by name; one whose name has the separator has `::`."""
        streams, _, _ = await self._streams.overview(match)
        return await self._counted([stream for stream in streams if stream.kind is StreamKind.QUEUE], key_separator)

    async def page(self, match: str = "*", *, limit: int = 100, cursor: str = "") -> Page[QueueInfo]:
        """Return the same, page by page, for queues with the usual separator."""
        page = await self._streams.page(match, StreamKind.QUEUE, limit=limit, cursor=cursor)
        return Page(tuple(await self._counted(page.items, "::")), page.cursor)

    async def _counted(self, found: Sequence[StreamInfo], key_separator: str) -> list[QueueInfo]:
        separators = ["::" if key_separator in stream.name else key_separator for stream in found]
        calls = [self._administration(each.name, own).stats_call for each, own in zip(found, separators, strict=True)]
        replies = checked(await run_many(self._client, "queue/stats", calls))
        return [
            _numbers(stream, stats_of(reply, _lag(stream).count)) for stream, reply in zip(found, replies, strict=True)
        ]

    async def stats(self, queue: str, *, key_separator: str = "::") -> QueueInfo:
        """Return the numbers of one queue; raise NotFound if there is no such stream, or if it is no message queue."""
        stream = await self._info(queue)
        return _numbers(stream, await self._administration(queue, key_separator).stats())

    def _administration(self, queue: str, separator: str) -> Administration:
        return Administration(self._client, QueueKeys.of(queue, separator), None, is_text=True)

    async def peek(
        self, queue: str, count: int = 10, *, source: str = "pending", key_separator: str = "::"
    ) -> list[MessageData]:
        """Return the oldest messages in a state without taking them; for the completed and failed logs, the newest.

        `source` is pending, processing, retrying, completed, failed or dead_letter.
        """
        check_number("count", count)
        await self._info(queue)
        return await self._administration(queue, key_separator).peek(count, source)

    async def newest(self, queue: str) -> str:
        """Return the id of the newest message: purge(until=...) keeps those that arrive after it."""
        await self._info(queue)
        return await newest_id(self._client, self._streams.key(queue))

    async def purge(
        self, queue: str, target: str = "pending", *, key_separator: str = "::", until: str | None = None
    ) -> int:
        """Delete pending messages, the completed or failed log, or dead letters; return how many.

        Guarantees: pending messages that arrive meanwhile, or after the id `until`, are kept.
        """
        await self._info(queue)
        return await self._administration(queue, key_separator).purge(target, until)

    async def _info(self, name: str) -> StreamInfo:
        found = await self._streams.info(name, memory=False)
        # A queue that was never read from is a stream without consumers; an archive or a Spark query may have a group.
        has_consumers = any(group.kind is GroupKind.CONSUMERS for group in found.groups)
        if found.kind is not StreamKind.QUEUE and (found.kind is not StreamKind.STREAM or has_consumers):
            raise ConfigurationError(
                f"stream {name!r} is not a message queue: its kind is {found.kind.value!r}; list message queues with "
                "`penstock queue ls`"
            )
        return found


def _lag(stream: StreamInfo) -> Lag:
    return next((group.lag for group in stream.groups if group.name == GROUP), Lag(0, 0.0))


def _numbers(stream: StreamInfo, found: QueueStats) -> QueueInfo:
    return QueueInfo(
        stream.name, found.pending, found.processing, found.retrying, found.completed, found.failed,
        found.dead_letter, _lag(stream).age_s,
    )  # fmt: skip
