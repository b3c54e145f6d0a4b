"""Reads the numbers of a queue."""

from __future__ import annotations

from penstock import envelope
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.tasks.gauges import LaneGauges, QueueGauges
from penstock.tasks.lane_map import LaneMap

_LOOKED_AT = 10_000


async def read_gauges(client: StreamClient, keys: TaskKeys, lanes: LaneMap, name: str, group: str) -> QueueGauges:
    """Return the numbers of a queue; the cost does not grow with what was done before."""
    flat = await client.call(keys.counts, "HGETALL", keys.counts)
    by_what: dict[str, dict[str, int]] = {"added": {}, "acked": {}, "dead": {}, "redriven": {}}
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        what, _, kind = envelope.text(field).partition(":")
        if what in by_what:
            by_what[what][kind] = envelope.number(value) or 0
    found = []
    for books in await lanes.all():
        reply = await client.run("task_gauges", [books.stream, books.retries], [group, _LOOKED_AT], Repeat.READ)
        found.append(LaneGauges(books.stream, int(reply[0]), int(reply[1]), int(reply[2]) / 1000))
    return QueueGauges(
        name=name,
        stream=keys.tasks().stream,
        open=int(await client.call(keys.index, "HLEN", keys.index)),
        scheduled=int(await client.call(keys.due, "ZCARD", keys.due)),
        dead_letters=int(await client.call(keys.dead, "XLEN", keys.dead)),
        results=int(await client.call(keys.done, "HLEN", keys.done)),
        lanes=tuple(found),
        **by_what,
    )
