"""The shadow of a query in Redis: a consumer group that stands where the query is."""

from __future__ import annotations

from penstock.errors import ConfigurationError, GroupLost, ServerError
from penstock.redis.retry import Repeat
from penstock.spark.source.catalogue import look_at_group
from penstock.spark.source.offsets import Position
from penstock.sync.redis.client import StreamClient


class GroupCursor:
    """Shows the progress of a query as a consumer group: monitoring and retention see it like any other consumer.

    The checkpoint stays the truth. The group is told only what is committed, so that retention keeps the rest.
    """

    def __init__(self, client: StreamClient, group: str, is_forced: bool) -> None:
        self._client, self._group, self._is_forced = client, group, is_forced
        self._shown: dict[str, Position] = {}

    def show(self, stream: str, at: Position) -> None:
        """Move the group to a position; create it if it does not exist."""
        if self._shown.get(stream) == at:
            return
        key = self._client.keys(stream).stream
        if stream not in self._shown:
            self._take_over(stream, key, at)
        try:
            self._move(key, at)
        except GroupLost:  # somebody destroyed it, or the stream was deleted and created anew
            self._take_over(stream, key, at)
            self._move(key, at)
        self._shown[stream] = at

    def _take_over(self, stream: str, key: str, at: Position) -> None:
        try:
            self._client.call(key, "XGROUP", "CREATE", key, self._group, at.id, repeat=Repeat.IDEMPOTENT)
        except ServerError as error:
            if "BUSYGROUP" not in str(error):
                raise
        info = look_at_group(self._client, stream, self._group) or {}
        if (info.get(b"consumers") or info.get(b"pending")) and not self._is_forced:
            raise ConfigurationError(
                f"group {self._group!r} of stream {stream!r} has {info[b'consumers']} consumers and "
                f"{info[b'pending']} pending messages: moving it would make its workers skip messages. Give the "
                "query a group of its own, or set option groupForce=true if those consumers are gone for good"
            )

    def _move(self, key: str, at: Position) -> None:
        # Without the rank the server could not tell the lag of a group that is set by hand. One that does not count
        # (before 7.0) does not know the word either, and no position has a rank there.
        counted = () if at.rank is None else ("ENTRIESREAD", at.rank)
        self._client.call(key, "XGROUP", "SETID", key, self._group, at.id, *counted, repeat=Repeat.IDEMPOTENT)
