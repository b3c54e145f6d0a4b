"""The audit: a story is told once undisturbed, and once more for each command in it, which is then lost on its way."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

import penstock
from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import PublishUnknown, TransientError
from penstock.events import EventName
from penstock.redis.scripts import names, script
from penstock.testing import FaultProxy
from penstock.testing.faults import Fault
from tests.queue.scenes import (
    COMPLETED,
    DEAD_LETTERS,
    FAILED,
    GROUP,
    QUEUE,
    Events,
    InFlight,
    age,
    look_again,
    pending,
    queue_of,
    quick_gateway,
    records,
    take,
)

SCRIPTS = set(names())
_HANDSHAKE = {"HELLO", "CLIENT", "AUTH", "SELECT", "INFO", "SCRIPT"}  # lost with them is a connection, not a command
_PASSING = {EventName.TRYING_AGAIN, EventName.UNSETTLED, EventName.EMPTY, EventName.CLAIMED}
# Lost with the reply that told of them; a chore that is interrupted is done in the next interval.
_UNTOLD = {EventName.RECLAIMED, EventName.MISSING, EventName.GROUP_LOST, EventName.UNLOGGED, EventName.TRIMMED}
_TRIES = 5


@dataclass(frozen=True)
class Request:
    """One command of a story: its name, the script if it runs one, and the how-manieth of its kind it is."""

    command: str
    script: str
    nth: int

    def arm(self, proxy: FaultProxy, loses: str) -> Fault:
        """Has the proxy lose this request, or the reply to it."""
        lose = proxy.drop_reply if loses == "reply" else proxy.drop_request
        return lose(self.command, self.nth, containing=script(self.script).sha.encode() if self.script else b"")

    def __str__(self) -> str:
        return f"{self.script or self.command} #{self.nth}"


class Recorder:
    """Listens at a proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._board, self._judge = proxy._board, proxy._board.judge
        self._seen: list[tuple[str, str]] = []
        self._by_sha = {script(name).sha: name for name in SCRIPTS}

    def __enter__(self) -> Self:
        self._board.judge = self._listen  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._board.judge = self._judge  # type: ignore[method-assign]

    def _listen(self, words: list[bytes]) -> Fault | None:
        name = words[0].decode().upper()
        if name not in _HANDSHAKE:
            self._seen.append((name, self._by_sha.get(words[1].decode(), "") if name == "EVALSHA" else ""))
        return self._judge(words)

    def requests(self) -> list[Request]:
        """Returns what came by."""
        count: Counter[tuple[str, str]] = Counter()
        found = []
        for kind in self._seen:
            count[kind] += 1
            found.append(Request(*kind, count[kind]))
        return found


class Stage:
    """Where a story is told: a gateway behind the proxy, and the truth beside it."""

    def __init__(self, client: StreamClient, raw: redis.Redis, budget_s: float) -> None:
        self.client, self.raw, self._budget_s = client, raw, budget_s
        self.events, self.results = Events(), list[Any]()
        self._gateways: list[RedisGateway] = []

    def queue(self, make: Callable[..., RedisGateway] = quick_gateway, **options: Any) -> RedisMessageQueue:
        """Returns a queue with a gateway of its own; options of the gateway are known by their names."""
        own = {"max_delivery_count", "max_pending_length", "pending_overload_policy"}
        settings = {name: options.pop(name) for name in list(options) if name in own}
        settings |= {"retry_budget_seconds": self._budget_s, "message_wait_interval_seconds": 0.15}
        gateway = make(self.client, on_event=self.events, **settings)
        self._gateways.append(gateway)
        return queue_of(gateway, on_event=self.events, **options)

    async def do(self, step: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Does a step of the story and remembers what it returned; without a budget the caller tries again."""
        for _ in range(_TRIES):
            try:
                result = await step(*args, **kwargs)
            except (TransientError, PublishUnknown):
                if self._budget_s:
                    raise
                continue
            if not isinstance(result, InFlight):
                self.results.append(result)
            return result
        raise AssertionError(f"{step} did not succeed in {_TRIES} calls")

    async def take(self, queue: RedisMessageQueue) -> InFlight:
        """Takes a message, which must be there, and remembers its counts."""
        for gateway in self._gateways:
            look_again(gateway)
        for _ in range(_TRIES):
            held = await self.do(take, queue)
            if held is not None:
                break
            self.results.pop()
        else:
            raise AssertionError("the message did not come")
        processing = held.processing
        self.results.append((held.message, held.number, processing.delivery_count, processing.attempts))
        return held

    async def end(self, held: InFlight, error: BaseException | None = None) -> None:
        """Ends a message; where that fails for want of a budget, the next call does it."""
        try:
            await held.end(error)
        except TransientError:
            if self._budget_s:
                raise
        self.results.append(held.processing.lease_lost)

    def age(self) -> None:
        """Has all leases run out."""
        age(self.raw)

    async def close(self) -> None:
        """Settles what is left."""
        for gateway in self._gateways:
            await self.do(gateway.close)
            self.results.pop()

    def outcome(self) -> dict[str, Any]:
        """Returns what became of everything, without ids and times."""
        told = Counter(event.name.value for event in self.events if event.name not in _PASSING | _UNTOLD)
        return {"results": self.results, "events": dict(told), **state(self.raw)}


def state(raw: redis.Redis) -> dict[str, Any]:
    """Returns what Redis holds of the queue, without ids and times."""
    groups = raw.xinfo_groups(QUEUE) if raw.exists(QUEUE) else []
    last = next((group["last-delivered-id"] for group in groups if group["name"] == GROUP.encode()), None)
    held = pending(raw) if last is not None else {}
    unread = [entry_id for entry_id, _ in raw.xrange(QUEUE, f"({last.decode()}" if last and last != b"0-0" else "-")]
    # What is done and still there, for another group or until the next chores, is as good as gone.
    living = {*unread, *(entry_id.encode() for entry_id in held)}
    entries = [(entry_id, fields) for entry_id, fields in raw.xrange(QUEUE) if entry_id in living]
    names = {entry_id.decode(): fields.get(b"data") for entry_id, fields in entries}
    attempts = raw.hgetall(f"{{{QUEUE}}}:attempts:queue")
    waiting = raw.zrange(f"{{{QUEUE}}}:retries:queue", 0, -1)
    markers = {key.decode(): raw.get(key).decode() for key in raw.scan_iter(f"{{{QUEUE}}}:dedup:*")}
    begun = {entry_id: int(attempts.pop(entry_id.encode(), count)) for entry_id, (_, count) in held.items()}
    return {
        "stream": sorted(map(str, names.values())),
        "pending": sorted((str(names.get(entry_id)), held[entry_id][1], begun[entry_id]) for entry_id in held),
        "attempts of nothing": attempts,
        "waiting": sorted(str(names.get(entry_id.decode())) for entry_id in waiting),
        "markers": {key: str(names.get(entry_id, "gone")) for key, entry_id in markers.items()},
        "completed": [(record["data"], record["log_attempts"]) for record in records(raw, COMPLETED)],
        "failed": [(record["data"], record["log_attempts"], record["log_error"]) for record in records(raw, FAILED)],
        "dead": [_dead(record) for record in records(raw, DEAD_LETTERS)],
    }


def _dead(record: dict[str, bytes]) -> tuple[bytes | None, ...]:
    names = ["data", "dlq_reason", "dlq_error", "dlq_deliveries"]
    if record["dlq_reason"] != b"missing":  # of a first run that left no body there may be no record
        names.append("dlq_attempts")
    return tuple(record.get(name) for name in names)


def commands_in_the_source() -> set[str]:
    """Returns the names of all commands and scripts that the code of the queue spells out."""
    found: set[str] = set()
    for path in (Path(penstock.__file__).parent / "queue").glob("*.py"):
        if path.name == "importer.py":
            continue  # runs beside a queue, may be run again, and has tests of its own
        text = path.read_text()
        found |= set(re.findall(r'"(X[A-Z]{2,}|EXISTS|DEL|SET|GET|HGET|HDEL|Z[A-Z]+|INCR|EXPIRE)"', text))
        found |= {name for name in re.findall(r'(?:run|script)\("(\w+/\w+)"', text) if name in SCRIPTS}
    return found
