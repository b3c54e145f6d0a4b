"""Message queues: their numbers, samples of their messages, purging."""

from __future__ import annotations

from penstock.errors import NotFound
from penstock.keys import QueueKeys
from penstock.model import Lag
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue
from penstock.ops.model import QueueInfo, StreamInfo, StreamKind
from penstock.ops.streams import Streams
from penstock.queue.administration import Administration, stats_of
from penstock.queue.model import GROUP, MessageData, QueueStats
from penstock.redis.client import StreamClient
from penstock.redis.reading import run_many
from penstock.redis.translate import checked


class MessageQueues:
    """The message queues of one server."""

    def __init__(self, client: StreamClient, catalogue: Catalogue, streams: Streams) -> None:
        self._client, self._catalogue, self._streams = client, catalogue, streams

    async def all(self, match: str = "*") -> list[QueueInfo]:
        """Return all message queues that have been read from, by name."""
        streams, _, _ = await self._streams.overview(match)
        found = [stream for stream in streams if stream.kind is StreamKind.QUEUE]
        calls = [self._administration(stream.name, "::").stats_call for stream in found]
        replies = checked(await run_many(self._client, "queue/stats", calls))
        return [
            _numbers(stream, stats_of(reply, _lag(stream).count)) for stream, reply in zip(found, replies, strict=True)
        ]

    async def stats(self, queue: str, *, key_separator: str = "::") -> QueueInfo:
        """Return the numbers of one queue; raise NotFound if there is no such stream."""
        stream = await self._streams.info(queue, memory=False)
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
        await self._streams.info(queue, memory=False)
        return await self._administration(queue, key_separator).peek(count, source)

    async def purge(self, queue: str, target: str = "pending", *, key_separator: str = "::") -> int:
        """Delete pending messages, the completed or failed log, or dead letters; return how many."""
        if not await self._catalogue.look([queue]):
            raise NotFound(f"message queue {queue!r} does not exist; list queues with `penstock queue ls`")
        return await self._administration(queue, key_separator).purge(target)


def _lag(stream: StreamInfo) -> Lag:
    return next((group.lag for group in stream.groups if group.name == GROUP), Lag(0, 0.0))


def _numbers(stream: StreamInfo, found: QueueStats) -> QueueInfo:
    return QueueInfo(
        stream.name, found.pending, found.processing, found.retrying, found.completed, found.failed,
        found.dead_letter, _lag(stream).age_s,
    )  # fmt: skip
