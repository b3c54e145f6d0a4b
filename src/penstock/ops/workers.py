"""Workers: every consumer name with all that it reads, whatever part of Penstock it works for."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue
from penstock.ops.groups import consumers_of
from penstock.ops.model import MAX_CONSUMERS, Consumer, ConsumerState, Page, WorkerInfo
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask


class Workers:
    """The consumers of all groups."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    async def consumers(self, match: str = "*", *, dead_after_ms: int | None = None) -> list[Consumer]:
        """Return the consumers of all groups of the streams that a pattern matches.

        Groups with more than 2,000 consumers are left out: unlisted() returns them.
        """
        counts = await self._counts(match)
        groups = [place for place, count in counts.items() if 0 < count <= MAX_CONSUMERS]
        keys = [self._catalogue.keys(stream).stream for stream, _ in groups]
        questions = [(key, ("XINFO", "CONSUMERS", key, group)) for key, (_, group) in zip(keys, groups, strict=True)]
        replies = await ask(self._client, questions)
        return [
            consumer
            for (stream, group), rows in zip(groups, replies, strict=True)
            if not isinstance(rows, PenstockError)
            for consumer in consumers_of(stream, group, rows, dead_after_ms)
        ]

    async def unlisted(self, match: str = "*") -> list[tuple[str, str]]:
        """Return the groups with more consumers than are listed, each behind its stream."""
        return [place for place, count in (await self._counts(match)).items() if count > MAX_CONSUMERS]

    async def _counts(self, match: str) -> dict[tuple[str, str], int]:
        snapshots = await self._catalogue.snapshots(await self._catalogue.names(match))
        return {
            (snapshot.name, group.name): group.consumers for snapshot in snapshots.values() for group in snapshot.groups
        }

    async def page(
        self,
        match: str = "*",
        *,
        state: ConsumerState | None = None,
        dead_after_ms: int | None = None,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[WorkerInfo]:
        """Return workers by name: a consumer of several lanes or streams is one worker."""
        check_number("limit", limit)
        by_name: dict[str, list[Consumer]] = {}
        for consumer in await self.consumers(match, dead_after_ms=dead_after_ms):
            by_name.setdefault(consumer.name, []).append(consumer)
        found = [_worker(name, consumers) for name, consumers in sorted(by_name.items()) if name > cursor]
        chosen = [worker for worker in found if state in {None, worker.state}]
        return Page(tuple(chosen[:limit]), chosen[limit - 1].name if len(chosen) > limit else "")


def _worker(name: str, consumers: list[Consumer]) -> WorkerInfo:
    idle_ms, pending = min(each.idle_ms for each in consumers), sum(each.pending for each in consumers)
    alive = {each.state for each in consumers} - {ConsumerState.DEAD}
    state = ConsumerState.DEAD if not alive else ConsumerState.ACTIVE if pending else ConsumerState.IDLE
    streams, groups = {each.stream for each in consumers}, {each.group for each in consumers}
    return WorkerInfo(name, state, tuple(sorted(streams)), tuple(sorted(groups)), pending, idle_ms)
