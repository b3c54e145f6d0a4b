"""The numbers of task queues, of many of them in few round trips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import envelope
from penstock.errors import GroupLost, PenstockError
from penstock.keys import TaskKeys
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import Question, ScriptCall, ask, run_many
from penstock.redis.translate import checked
from penstock.tasks.lanes import lanes_in
from penstock.tasks.listed import LaneGauges, QueueGauges

# Pending entries whose idle times are read: a few of each lane, of many lanes in one write; then many, of few lanes,
# because the server serves no other client in between.
_FEW, _MANY, _TOGETHER = 100, 1_000, 4
_PAGES, _MAX_SCRIPTS = 10, 100  # that read many: of one lane, and of all lanes together


@dataclass(slots=True)
class _LaneCount:
    """What is pending in one lane, counted a page at a time."""

    stream: str
    retries: str
    group: str
    in_hand: int = 0
    waiting: int = 0
    idle_ms: int = 0
    start: str = "-"  # where to continue; '' = there are no more

    @property
    def gauges(self) -> LaneGauges:
        """The numbers so far."""
        return LaneGauges(self.stream, self.in_hand, self.waiting, self.idle_ms / 1000)


async def read_gauges(client: StreamClient, queues: Sequence[tuple[str, TaskKeys]]) -> list[QueueGauges]:
    """Return the numbers of queues, each given by name and keys; the cost does not grow with what was done before."""
    questions: list[Question] = []
    for _, keys in queues:
        commands = [
            ("SMEMBERS", keys.lanes), ("HGETALL", keys.counts), ("HLEN", keys.index), ("ZCARD", keys.due),
            ("XLEN", keys.dead), ("HLEN", keys.done),
        ]  # fmt: skip
        questions += [(keys.index, command) for command in commands]
    replies = checked(await ask(client, questions))
    rows = [replies[index : index + 6] for index in range(0, len(replies), 6)]
    lanes = [_lanes(name, keys, each[0]) for (name, keys), each in zip(queues, rows, strict=True)]
    await _count(client, [lane for some in lanes for lane in some])
    return [
        _queue_gauges(name, keys, counts, list(map(int, numbers)), some)
        for (name, keys), (_, counts, *numbers), some in zip(queues, rows, lanes, strict=True)
    ]


def _lanes(name: str, keys: TaskKeys, members: Sequence[bytes]) -> list[_LaneCount]:
    streams = [keys.tasks(lane.suffix) for lane in lanes_in(members)]
    return [_LaneCount(each.stream, each.retries(name), name) for each in streams]


async def _count(client: StreamClient, lanes: Sequence[_LaneCount]) -> None:
    left, scripts = await _advance(client, lanes, _FEW), _MAX_SCRIPTS
    for _ in range(_PAGES):
        left = left[:scripts]
        scripts -= len(left)
        further: list[_LaneCount] = []
        for start in range(0, len(left), _TOGETHER):
            further += await _advance(client, left[start : start + _TOGETHER], _MANY)
        left = further


async def _advance(client: StreamClient, lanes: Sequence[_LaneCount], most: int) -> list[_LaneCount]:
    """Count one page of each lane; return the lanes that have more."""
    calls: list[ScriptCall] = [([lane.stream, lane.retries], [lane.group, most, lane.start]) for lane in lanes]
    for lane, reply in zip(lanes, await run_many(client, "tasks/gauges", calls), strict=True):
        if isinstance(reply, GroupLost):  # nothing is pending; the next worker creates the group
            lane.start = ""
            continue
        if isinstance(reply, PenstockError):
            raise reply
        in_hand, waiting, idle_ms, further = reply
        lane.in_hand, lane.waiting, lane.idle_ms = int(in_hand), int(waiting), max(lane.idle_ms, int(idle_ms))
        lane.start = further.decode()
    return [lane for lane in lanes if lane.start]


def _queue_gauges(
    name: str, keys: TaskKeys, counts: Reply, numbers: Sequence[int], lanes: Sequence[_LaneCount]
) -> QueueGauges:
    by_what: dict[str, dict[str, int]] = {"added": {}, "acked": {}, "dead": {}, "redriven": {}}
    dead_trimmed = 0
    for field, value in zip(counts[::2], counts[1::2], strict=True):
        what, _, kind = envelope.text(field).partition(":")
        if what == "dead_trimmed":
            dead_trimmed = envelope.number(value) or 0
        elif what in by_what:
            by_what[what][kind] = envelope.number(value) or 0
    is_open, scheduled, dead_letters, results = numbers
    return QueueGauges(
        name=name,
        stream=keys.tasks().stream,
        open=is_open,
        scheduled=scheduled,
        dead_letters=dead_letters,
        results=results,
        lanes=tuple(lane.gauges for lane in lanes),
        dead_trimmed=dead_trimmed,
        **by_what,
    )
