"""Reads the numbers of a queue."""

from __future__ import annotations

from penstock import envelope
from penstock.errors import GroupLost
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.tasks.gauges import LaneGauges, QueueGauges
from penstock.tasks.lane_registry import LaneRegistry
from penstock.tasks.lane_store import LaneStore

_PAGE, _PAGES = 1_000, 10  # entries in hand that are looked at


async def read_gauges(client: StreamClient, keys: TaskKeys, lanes: LaneRegistry, name: str, group: str) -> QueueGauges:
    """Return the numbers of a queue; the cost does not grow with what was done before."""
    flat = await client.call(keys.counts, "HGETALL", keys.counts)
    by_what: dict[str, dict[str, int]] = {"added": {}, "acked": {}, "dead": {}, "redriven": {}}
    dead_trimmed = 0
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        what, _, kind = envelope.text(field).partition(":")
        if what == "dead_trimmed":
            dead_trimmed = envelope.number(value) or 0
        elif what in by_what:
            by_what[what][kind] = envelope.number(value) or 0
    found = [await _lane_gauges(client, store, group) for store in await lanes.listed()]
    return QueueGauges(
        name=name,
        stream=keys.tasks().stream,
        open=int(await client.call(keys.index, "HLEN", keys.index)),
        scheduled=int(await client.call(keys.due, "ZCARD", keys.due)),
        dead_letters=int(await client.call(keys.dead, "XLEN", keys.dead)),
        results=int(await client.call(keys.done, "HLEN", keys.done)),
        lanes=tuple(found),
        dead_trimmed=dead_trimmed,
        **by_what,
    )


async def _lane_gauges(client: StreamClient, store: LaneStore, group: str) -> LaneGauges:
    in_hand = waiting = idle_ms = 0
    start = "-"
    for _ in range(_PAGES):
        keys = [store.stream, store.retries]
        try:
            in_hand, waiting, longest_ms, further = await client.run(
                "tasks/gauges", keys, [group, _PAGE, start], Repeat.READ
            )
        except GroupLost:
            break  # nothing is in hand; the next worker makes the group
        idle_ms = max(idle_ms, int(longest_ms))
        if not further:
            break
        start = further.decode()
    return LaneGauges(store.stream, int(in_hand), int(waiting), idle_ms / 1000)
