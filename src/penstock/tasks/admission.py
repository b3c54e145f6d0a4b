"""Lets tasks begin within the limits of their kind, over all workers of a queue."""

from __future__ import annotations

from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.task import Task
from penstock.tasks.lanes import suffix_of
from penstock.tasks.limits import Limits, concurrency_scopes, rate_scopes
from penstock.tasks.tasks_in_flight import TaskInFlight

_ASKS_AGAIN_MS = 10_000  # a task that waits for a permit is woken when one is free; this is for when nobody wakes it


class Admission:
    """The limits of one queue, as one consumer meets them."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, consumer: str) -> None:
        self._client, self._keys, self._group, self._consumer = client, keys, group, consumer
        self._holding: dict[str, list[str]] = {}  # by kind: the lanes whose tasks had permits when it was asked last

    async def admit(self, held: TaskInFlight, limits: Limits, lease_ms: int) -> bool:
        """Tell whether a task may begin; if not, it was put aside and will come again."""
        kind, lane = held.task.kind, held.lane.name
        limit_keys: list[str] = []
        limit_args: list[str | int] = []
        for scope, most in concurrency_scopes(held.task, limits):
            limit_keys += (self._keys.permits(scope), self._keys.queue_for(scope))
            limit_args += ("c", most, 0)
        for scope, rate in rate_scopes(held.task, limits):
            limit_keys += (self._keys.rate(scope), self._keys.reserved(scope))
            limit_args += ("r", rate.count, round(rate.per_s * 1000))
        names = list(dict.fromkeys([lane, *self._holding.get(kind, ())]))
        while True:
            streams = [self._keys.tasks(suffix_of(name)) for name in names]
            keys = [key for stream in streams for key in (stream.stream, stream.retries(self._group))]
            args: list[str | int] = [
                self._group, self._consumer, held.entry_id, lane, held.task.id, len(names), lease_ms, _ASKS_AGAIN_MS,
            ]  # fmt: skip
            reply = await self._client.run(
                "tasks/admit",
                [*keys, streams[0].attempts(self._group), *limit_keys],
                [*args, *names, *limit_args],
                Repeat.IDEMPOTENT,
            )
            if not isinstance(reply, list):
                return int(reply) == 1
            self._holding[kind] = [name.decode() for name in reply]
            names = list(dict.fromkeys([*names, *self._holding[kind]]))

    async def give_back(self, task: Task, limits: Limits) -> bool:
        """Give the permits of a task back; tell whether another one may begin for that."""
        is_woken = False
        for scope, _ in concurrency_scopes(task, limits):
            names: list[str] = []
            while True:
                retries = [self._keys.tasks(suffix_of(name)).retries(self._group) for name in names]
                keys = [self._keys.permits(scope), self._keys.queue_for(scope), *retries]
                reply = await self._client.run("tasks/permit", keys, [task.id, *names], Repeat.IDEMPOTENT)
                if not isinstance(reply, bytes):
                    is_woken = bool(reply) or is_woken
                    break
                names.append(reply.decode())
        return is_woken
