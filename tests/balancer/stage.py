"""The stage on which the tests of the balancer play: names, short times, an application that follows its notices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis

from penstock import StreamClient
from penstock.balancer.balancer import StreamBalancer
from penstock.balancer.messages import (
    LBSInfo,
    Notice,
    StreamAdded,
    StreamDisowned,
    StreamExpired,
    StreamTerminated,
    terminated,
)
from penstock.balancer.notice_queue import NoticeQueue
from penstock.errors import AlreadyClaimed
from tests.helpers.aio import DEADLINE_S, Task, join, start

SERVICE = "svc"
LBS = "svc-input"
GROUP = "svc-group"
SEP = "<MUTEX_KEY_SEP>"
# Locks that do not run out here, however slow the machine; `age_locks` makes them old.
LASTING = {"lease_ms": 60_000, "lbs_idle_time": 120}
# The locks outlast every stall of a busy machine but the worst; `crash` lets their time pass at once.
QUICK = {"heartbeat_interval_ms": 100, "lease_ms": 3_000, "recovery_interval_ms": 300}


def quick(client: StreamClient, name: str, **settings: Any) -> StreamBalancer:
    """Returns a balancer whose times are short."""
    return StreamBalancer(client, SERVICE, id=name, **{**QUICK, **settings})


def plain(client: StreamClient, name: str, **settings: Any) -> StreamBalancer:
    """Returns a balancer with the times of the Go client."""
    return StreamBalancer(client, SERVICE, id=name, **settings)


class Follower:
    """An application: it remembers its notices, and claims what has no owner unless it is told not to."""

    def __init__(self, balancer: StreamBalancer, *, claims: bool = True) -> None:
        self.balancer, self._claims = balancer, claims
        self.notices: list[Notice] = []
        self.claimed: list[LBSInfo] = []
        self.refused: list[str] = []

    async def follow(self, notices: NoticeQueue) -> None:
        async for notice in notices:
            self.notices.append(notice)
            if isinstance(notice, StreamExpired) and self._claims:
                try:
                    await self.balancer.claim(notice.payload)
                    self.claimed.append(notice.payload)
                except AlreadyClaimed as error:
                    self.refused.append(str(error))

    def names(self, kind: type[Notice]) -> list[str]:
        """The data streams of the notices of one kind, in their order."""
        return [notice.payload.data_stream_name for notice in self.notices if isinstance(notice, kind)]

    @property
    def added(self) -> list[str]:
        return self.names(StreamAdded)

    @property
    def expired(self) -> list[str]:
        return self.names(StreamExpired)

    @property
    def disowned(self) -> list[str]:
        return self.names(StreamDisowned)

    @property
    def ending(self) -> str:
        """What the last notice says."""
        last = self.notices[-1]
        assert isinstance(last, StreamTerminated)
        assert last.additional_info is not None
        return str(last.additional_info["info"])

    @property
    def owned(self) -> list[str]:
        return [ownership.payload.data_stream_name for ownership in self.balancer.owned]


@asynccontextmanager
async def following(*balancers: StreamBalancer, claims: bool = True) -> AsyncIterator[list[Follower]]:
    """Starts balancers, each with an application; ends them at the end."""
    followers = [Follower(balancer, claims=claims) for balancer in balancers]
    tasks: list[Task[Any]] = []
    try:
        for follower in followers:
            tasks += [start(follower.follow, await follower.balancer.start())]
        yield followers
    finally:
        for follower in followers:
            await follower.balancer.done()
        for task in tasks:
            await join(task)


@asynccontextmanager
async def running(*runs: tuple[StreamBalancer, Any], **settings: Any) -> AsyncIterator[None]:
    """Runs balancers beside the test."""
    tasks = [start(balancer.run, handler, handle_signals=False, **settings) for balancer, handler in runs]
    try:
        yield
    finally:
        for balancer, _ in runs:
            balancer.stop()
        for task in tasks:
            await join(task)


async def crash(balancer: StreamBalancer) -> None:
    """Stops a balancer as a killed process stops, nothing is handed over; then lets the time of its locks pass."""
    balancer._heartbeat.stop()
    balancer._listener.stop()
    balancer._sweep.stop()
    with suppress(Exception):
        await balancer._reader.stop()
    assert await balancer._activities.join(DEADLINE_S)
    assert await balancer._listener._listening.join(DEADLINE_S)
    balancer._is_over = True
    balancer._notices.close(terminated("killed"))
    await _outlive(balancer)


async def _outlive(balancer: StreamBalancer) -> None:
    client, keys = balancer.client, balancer.keys
    idle = ("IDLE", 2 * balancer.config.lease_ms, "JUSTID")
    await balancer._commands.leave()
    for owned in balancer.owned:
        await client.call(
            keys.stream, "XCLAIM", keys.stream, keys.group, balancer.id, 0, owned.payload.id_in_lbs, *idle
        )
        await client.call(owned.payload.lock, "PEXPIRE", owned.payload.lock, 1)


# --- what the server says, and what a peer in another language would do ---------------------------


def add_raw(raw: redis.Redis, name: str, info: dict[str, Any] | None = None) -> str:
    """Adds a data stream as the Go documentation does."""
    value = json.dumps({"DataStreamName": name, "Info": info})
    return raw.xadd(LBS, {"lbs-input": value}).decode()


def age_locks(raw: redis.Redis) -> None:
    """Lets two thirds of the time of all LASTING locks pass."""
    for key in locks(raw):
        raw.pexpire(key, 20_000)


def are_extended(raw: redis.Redis) -> bool:
    """Tells whether all LASTING locks were extended since."""
    return bool(locks(raw)) and all(raw.pttl(key) > 40_000 for key in locks(raw))


def pending(raw: redis.Redis) -> dict[str, tuple[str, int, int]]:
    """Returns consumer, idle ms and deliveries of what is pending, by entry id."""
    try:
        rows = raw.xpending_range(LBS, GROUP, "-", "+", 100_000)
    except redis.ResponseError:
        return {}  # there is no group
    return {
        row["message_id"].decode(): (row["consumer"].decode(), row["time_since_delivered"], row["times_delivered"])
        for row in rows
    }


def locks(raw: redis.Redis) -> dict[str, str]:
    """Returns the holder of every lock."""
    found = {}
    for key in raw.scan_iter(match=f"*{SEP}*", count=1000):
        value = raw.get(key)
        if value is not None:
            found[key.decode()] = value.decode()
    return found


def go_reads(raw: redis.Redis, consumer: str, count: int | None = None) -> list[str]:
    """Reads new entries and locks them, as a Go peer does; returns the ids."""
    reply = raw.xreadgroup(GROUP, consumer, {LBS: ">"}, count=count)
    ids = []
    for _, rows in reply:
        for entry_id, fields in rows:
            name = json.loads(fields[b"lbs-input"])["DataStreamName"]
            raw.set(f"{name}{SEP}{entry_id.decode()}", consumer, px=2000, nx=True)
            ids.append(entry_id.decode())
    return ids


def go_claims(raw: redis.Redis, consumer: str, name: str, entry_id: str) -> bool:
    """Claims a stream as a Go peer does: XCLAIM with MINIDLE 2000, then the lock."""
    if not raw.xclaim(LBS, GROUP, consumer, 2000, [entry_id]):
        return False
    return bool(raw.set(f"{name}{SEP}{entry_id}", consumer, ex=2, nx=True))
