"""What Redis holds at the end of a scenario, read by plain redis-py: by the numbers that the messages carry."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from campaign.checker import State

_NUMBER = re.compile(rb'"n": ?(\d+)')
_PAGE = 5_000
_LOCK = "<MUTEX_KEY_SEP>"  # between data stream and entry in the name of a lock
Fields = dict[bytes, bytes]


def entries(raw: Any, stream: str, after: str = "-") -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """Yield the entries of a stream, page by page."""
    while page := raw.xrange(stream, after, "+", count=_PAGE):
        yield from ((entry_id.decode(), fields) for entry_id, fields in page)
        after = f"({page[-1][0].decode()}"


def number_of(fields: dict[bytes, bytes]) -> str:
    """Return the number that the payload carries."""
    found = _NUMBER.search(fields.get(b"data", b""))
    return found[1].decode() if found else "?"


def unsettled(raw: Any, stream: str, group: str) -> set[str]:
    """Return the ids that a group has pending or unread; of a lost group all."""
    try:
        found = [info for info in raw.xinfo_groups(stream) if info["name"] == group.encode()]
    except redis.ResponseError:
        return set()
    if not found:
        return {entry_id for entry_id, _ in entries(raw, stream)}
    last = found[0]["last-delivered-id"].decode()
    waiting = {entry_id for entry_id, _ in entries(raw, stream, "-" if last == "0-0" else f"({last}")}
    after = "-"
    while page := raw.xpending_range(stream, group, after, "+", _PAGE):
        waiting |= {row["message_id"].decode() for row in page}
        after = f"({page[-1]['message_id'].decode()}"
    return waiting


def is_quiet(raw: Any, stream: str, group: str) -> bool:
    """Return whether a group has nothing pending and nothing unread."""
    try:
        found = [info for info in raw.xinfo_groups(stream) if info["name"] == group.encode()]
    except redis.ResponseError:
        return True
    if not found:
        return not raw.xlen(stream)
    last = found[0]["last-delivered-id"].decode()
    return not found[0]["pending"] and not raw.xrange(stream, "-" if last == "0-0" else f"({last}", "+", count=1)


def held_by(raw: Any, stream: str, group: str, pid: int, number: Callable[[Fields], str] = number_of) -> set[str]:
    """Return what a process has in hand; the consumers of Penstock have its id in their names.

    Messages that wait for a retry are pending with it, too, but in nobody's hands.
    """
    retries = f"{stream if '{' in stream else f'{{{stream}}}'}:retries:{group}"
    before = set(raw.zrange(retries, 0, -1))
    is_ours = re.compile(rf"_{pid:x}[0-9a-f]{{8}}(?![0-9a-f])")
    ids: list[bytes] = []
    for consumer in raw.xinfo_consumers(stream, group):
        if consumer["pending"] and is_ours.search(consumer["name"].decode()):
            rows = raw.xpending_range(stream, group, "-", "+", _PAGE, consumername=consumer["name"])
            ids += [row["message_id"] for row in rows]
    # What the process sent before it died may arrive meanwhile.
    waiting = before | set(raw.zrange(retries, 0, -1))
    with raw.pipeline(transaction=False) as pipeline:
        for entry_id in (each for each in ids if each not in waiting):
            pipeline.xrange(stream, entry_id, entry_id)
        return {number(fields) for rows in pipeline.execute() for _, fields in rows}


def of_stream(raw: Any, stream: str, group: str, dead: str) -> State:
    """Return the state of a stream, or of the stream of a queue."""
    state, waiting = State(), unsettled(raw, stream, group)
    for entry_id, fields in entries(raw, stream):
        if entry_id in waiting:
            state.queued.add(number_of(fields))
    for _, fields in entries(raw, dead):
        state.dead[number_of(fields)] += 1
    return state


def lanes(raw: Any, name: str) -> list[str]:
    """Return the streams of a task queue."""
    return [key.decode() for key in raw.scan_iter(match=f"{name}.tasks*", count=1_000)]


def tasks_held_by(raw: Any, name: str, pid: int) -> set[str]:
    """Return the tasks that a worker has in hand."""
    return set[str]().union(*(held_by(raw, lane, name, pid, _task) for lane in lanes(raw, name)))


def of_tasks(raw: Any, name: str) -> State:
    """Return the state of a task queue; tasks are called `t-<number>`."""
    state = State(is_result_due=True)
    for lane in lanes(raw, name):
        waiting = unsettled(raw, lane, name)
        state.queued |= {_task(fields) for entry_id, fields in entries(raw, lane) if entry_id in waiting}
    state.queued |= {key.decode().removeprefix("t-") for key in raw.hkeys(f"{{{name}}}:bodies")}
    for _, fields in entries(raw, f"{name}.dead"):
        state.dead[_task(fields)] += 1
    # As it is: one entry has the same fields again for each further result.
    with redis.Redis(connection_pool=raw.connection_pool) as plain:
        plain.set_response_callback("XRANGE", lambda rows, **_: rows)
        for _, fields in plain.execute_command("XRANGE", f"{name}.results", "-", "+"):
            state.results.update(task_id.decode().removeprefix("t-") for task_id in fields[1::8])
    for n in state.dead:
        state.results.pop(n, None)  # the error of a task that was given up is no second result
    return state


def saved_results(root: Path) -> Counter[str]:
    """Return how many files FSBackend has for each task: `<day>/<kind>-<id>.msgpack`."""
    return Counter(path.stem.rpartition("-t-")[2] for path in root.glob("[0-9]*/*.msgpack"))


def _task(fields: dict[bytes, bytes]) -> str:
    return fields.get(b"task_id", b"?").decode().removeprefix("t-")


def of_sessions(raw: Any, service: str) -> State:
    """Return the state of a balanced service: what lies behind the committed position of each data stream."""
    state = State()
    for name in sessions(raw, service):
        for _, fields in entries(raw, name, _behind(raw, name, service)):
            state.queued.add(number_of(fields))
    return state


def sessions(raw: Any, service: str) -> list[str]:
    """Return the data streams of a service."""
    announced = (json.loads(fields[b"lbs-input"]) for _, fields in entries(raw, f"{service}-input"))
    return [entry["DataStreamName"] for entry in announced]


def sessions_held_by(raw: Any, service: str, owner: str) -> set[str]:
    """Return the next message of every data stream that a consumer owns: the lock of a stream has its name."""
    locks = list(raw.scan_iter(match=f"{service}-session-*{_LOCK}*", count=1_000))
    if not locks:
        return set()
    owned = [
        key for key, value in zip(locks, raw.mget(locks), strict=True) if value == f"redis-consumer-{owner}".encode()
    ]
    found = set()
    for name in (key.decode().partition(_LOCK)[0] for key in owned):
        rows = raw.xrange(name, _behind(raw, name, service), "+", count=1)
        found |= {number_of(fields) for _, fields in rows}
    return found


def are_sessions_quiet(raw: Any, service: str) -> bool:
    """Return whether every data stream is committed to its end."""
    return not any(raw.xrange(name, _behind(raw, name, service), "+", count=1) for name in sessions(raw, service))


def _behind(raw: Any, name: str, service: str) -> str:
    position = raw.hget(f"{{{name}}}:balancer:{service}", "position")
    return f"({position.decode()}" if position else "-"
