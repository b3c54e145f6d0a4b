"""The lanes that a queue has, looked up now and then: a producer may open a new one at any time."""

from __future__ import annotations

import time

from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.tasks.lane_store import LaneStore
from penstock.tasks.lanes import DEFAULT, Lane, TaskFilter

LOOK_EVERY_S = 1.0
_COMPARED_MS = 3_600_000


class LaneRegistry:
    """All lanes of one queue, each with its store."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, consumer: str) -> None:
        self._client, self._keys, self._group, self._consumer = client, keys, group, consumer
        self._stores: dict[Lane, LaneStore] = {}
        self._known: set[Lane] = set()  # whose groups exist
        self.is_restored = False  # a group was lost lately: what comes as new may have been done
        self._looked_s = float("-inf")

    def store(self, lane: Lane) -> LaneStore:
        """Return the store of a lane."""
        found = self._stores.get(lane)
        return self._stores.setdefault(lane, self._made(lane)) if found is None else found

    def _made(self, lane: Lane) -> LaneStore:
        return LaneStore(self._client, self._keys, lane, self._group, self._consumer)

    async def listed(self) -> list[LaneStore]:
        """Return the store of all lanes, for a look that writes nothing: a group may not exist."""
        return [self._stores.get(lane) or self._made(lane) for lane in await self._listed()]

    async def all(self) -> list[LaneStore]:
        """Return the store of all lanes, with groups that exist."""
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            await self.look()
        return list(self._stores.values())

    async def read_by(self, wanted: TaskFilter) -> list[LaneStore]:
        """Return the store of the lanes that a worker reads."""
        return [store for store in await self.all() if wanted.reads(store.lane)]

    async def _listed(self) -> dict[Lane, None]:
        names = await self._client.call(self._keys.lanes, "SMEMBERS", self._keys.lanes)
        parsed = [Lane.parse(name.decode(errors="replace")) for name in names]
        return dict.fromkeys((DEFAULT, *(lane for lane in parsed if lane is not None)))

    async def look(self) -> None:
        """Look up the lanes now."""
        lanes = await self._listed()
        for lane in [lane for lane in list(self._stores) if lane not in lanes]:
            self.forget(lane)
        for lane in lanes:
            if lane not in self._known:
                await self._ensure(lane)
        restored = self._keys.chore("restored")
        self.is_restored = bool(await self._client.call(restored, "EXISTS", restored))
        self._looked_s = time.monotonic()

    async def _ensure(self, lane: Lane) -> None:
        is_new = await self.store(lane).group.restore() is not None
        if is_new and await self._client.call(self._keys.done, "EXISTS", self._keys.done):
            # A group that was lost begins with the oldest entry, and tasks that were done are still in the stream.
            restored = self._keys.chore("restored")
            command = ("SET", restored, self._consumer, "PX", _COMPARED_MS)
            await self._client.call(restored, *command, repeat=Repeat.IDEMPOTENT)
        self._known.add(lane)

    def forget(self, lane: Lane) -> None:
        """Read a lane no longer: it is off the list."""
        self._stores.pop(lane, None)
        self._known.discard(lane)

    def forget_groups(self) -> None:
        """Look for the groups again: the server has lost one."""
        self._known.clear()
        self._looked_s = float("-inf")
