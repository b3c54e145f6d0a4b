"""The streams of a server, and what each of them is for."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from penstock import envelope, ids
from penstock.errors import ConfigurationError, GroupLost, NotFound, PenstockError, ServerError
from penstock.keys import StreamKeys, TaskKeys, check_name, is_utf8
from penstock.keys.stream_names import queue_log, service_of, source_of_dead_letters, task_stream
from penstock.ops.model import StreamKind
from penstock.queue.model import GROUP as QUEUE_GROUP
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask, escaped, run_many, stream_keys
from penstock.shown import command_line

MAX_GROUPS = 64  # of one stream that are read
STEP, MAX_PER_PAGE = 100, 2_000  # streams that are read together, and for one page, if few are of a kind


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as the server describes it."""

    name: str
    consumers: int
    pending: int
    last_delivered_id: str
    entries_read: int | None
    lag: int | None  # the server's own number
    first_unread_id: str  # '' = all is read, '?' = not known
    oldest_pending_id: str
    oldest_pending_idle_ms: int


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A stream at one moment."""

    name: str
    length: int
    first_id: str
    last_id: str
    last_generated_id: str
    entries_added: int | None
    are_dead_letters: bool  # its first and its last entry say so; any client may have written them
    now_ms: int
    groups_count: int
    groups: tuple[GroupSnapshot, ...]

    @property
    def has_huge_entries(self) -> bool:
        """Whether entries have megabytes: then none was looked at, and ids are unknown."""
        return self.length > 0 and not self.last_id


def missing_stream(name: str) -> NotFound:
    """Return the error for a stream that does not exist."""
    return NotFound(f"stream {name!r} does not exist; list streams with `penstock stream ls`")


class Catalogue:
    """The streams of one server, found by SCAN in bounded steps, and remembered for `max_age_s`."""

    def __init__(self, client: StreamClient, max_age_s: float) -> None:
        self._client, self._max_age_s = client, max_age_s
        self._names: list[str] = []
        self._read_s = -float("inf")

    def keys(self, name: str) -> StreamKeys:
        """Return the keys of a stream; names that Penstock itself would not choose are accepted."""
        check_name("stream", name)
        return StreamKeys(f"{self._client.prefix}_{name}" if self._client.prefix else name)

    def task_keys(self, queue: str) -> TaskKeys:
        """Return the keys of a task queue, as its streams are named."""
        return TaskKeys(queue, self._client.prefix)

    async def names(self, match: str = "*") -> list[str]:
        """Return the names of all streams that a glob pattern matches, sorted."""
        if time.monotonic() - self._read_s > self._max_age_s or not self._max_age_s:
            prefix = f"{self._client.prefix}_" if self._client.prefix else ""
            found = await stream_keys(self._client, f"{escaped(prefix)}*")
            names = [key.removeprefix(prefix) for key in found]
            self._names, self._read_s = [name for name in names if _can_be_named(name)], time.monotonic()
        return self._names if match == "*" else [name for name in self._names if fnmatchcase(name, match)]

    async def services(self) -> list[str]:
        """Return the load balancer streams, which have no prefix: streams that are called and read like one."""
        found = await stream_keys(self._client, "*-input") if self._client.prefix else await self.names("*-input")
        return [name for name in found if service_of(name)]

    @asynccontextmanager
    async def group_must_exist(self, stream: str, group: str) -> AsyncIterator[None]:
        """Raise NotFound where the server says that there is no such stream or group."""
        check_name("group", group)
        try:
            yield
        except (GroupLost, ServerError) as error:
            if isinstance(error, ServerError) and "no such key" not in str(error):
                raise
            key = self.keys(stream).stream
            if not await self._client.call(key, "EXISTS", key):
                raise missing_stream(stream) from None
            raise NotFound(
                f"stream {stream!r} has no group {group!r}; list its groups with {command_line('group ls', stream)}"
            ) from None

    async def snapshots(
        self, names: Sequence[str], most_groups: int = MAX_GROUPS, only_group: str = "", first_group: int = 0
    ) -> dict[str, StreamSnapshot]:
        """Return streams as they are now, without those that are gone, no streams, or not readable by the user."""
        keys = [self.keys(name).stream for name in names]
        return await self._read(names, keys, most_groups, only_group, first_group)

    async def service_snapshots(self, names: Sequence[str]) -> dict[str, StreamSnapshot]:
        """Return load balancer streams as they are now."""
        return await self._read(names, names)

    async def _read(self, names: Sequence[str], keys: Sequence[str], *args: int | str) -> dict[str, StreamSnapshot]:
        calls = [([key], args or (MAX_GROUPS, "", 0)) for key in keys]
        replies = await run_many(self._client, "ops/snapshot", calls)
        return {
            name: _snapshot(name, reply)
            for name, reply in zip(names, replies, strict=True)
            if reply and not isinstance(reply, PenstockError)
        }

    async def task_queues(self, names: Collection[str] | None = None) -> set[str]:
        """Return the task queues, by what their streams begin with."""
        names = await self.names() if names is None else names
        roots = sorted({found[0] for name in names if (found := task_stream(name))})
        marks = [self.task_keys(root).lanes for root in roots]
        replies = await ask(self._client, [(mark, ("EXISTS", mark)) for mark in marks])
        return {root for root, reply in zip(roots, replies, strict=True) if reply == 1}


def checked_id(entry_id: str) -> str:
    """Return an id if it is one; raise ConfigurationError for anything else."""
    ids.parse(entry_id)
    return entry_id


def checked_text(text: str) -> str:
    """Return a text to search for; raise ConfigurationError for one that cannot be sent."""
    if not is_utf8(text):
        raise ConfigurationError(f"text={text[:40]!r} must not contain lone surrogates, which UTF-8 cannot encode")
    return text


def kind_of(snapshot: StreamSnapshot, task_queues: Collection[str]) -> tuple[StreamKind, str]:
    """Return what a stream is, and the queue, service or stream that it belongs to ('' = none)."""
    name, groups = snapshot.name, {group.name for group in snapshot.groups}
    of_tasks = task_stream(name)
    if of_tasks and of_tasks[0] in task_queues:
        parts = {"tasks": StreamKind.TASKS, "results": StreamKind.RESULTS, "dead": StreamKind.DEAD_LETTERS}
        return parts[of_tasks[1]], queue_name(of_tasks[0])
    log = queue_log(name)
    if log:
        return (StreamKind.DEAD_LETTERS if log[1] == "dlq" else StreamKind.QUEUE_LOG), log[0]
    source = source_of_dead_letters(name)
    if source:
        return StreamKind.DEAD_LETTERS, source
    # Any client can write entries that look like dead letters: a stream with consumers is not taken for one.
    if snapshot.are_dead_letters and not any(group.consumers for group in snapshot.groups):
        return StreamKind.DEAD_LETTERS, ""
    service = service_of(name)
    if service and f"{service}-group" in groups:
        return StreamKind.SERVICE, service
    return (StreamKind.QUEUE, name) if QUEUE_GROUP in groups else (StreamKind.STREAM, "")


def queue_name(root: str) -> str:
    """Return the name that users give a task queue: in a cluster its streams begin with it as a hash tag."""
    return root[1:-1] if re.fullmatch(r"\{[^{}]+\}", root) else root


def _snapshot(name: str, reply: Reply) -> StreamSnapshot:
    length, first, last, generated, added, is_dead, now_ms, count, groups = reply
    return StreamSnapshot(
        name, int(length), first.decode(), last.decode(), generated.decode(), _counted(added), is_dead == b"1",
        int(now_ms), int(count), tuple(_group(group) for group in groups),
    )  # fmt: skip


def _group(reply: Reply) -> GroupSnapshot:
    name, consumers, pending, delivered, read, lag, unread, oldest, idle_ms = reply
    return GroupSnapshot(
        envelope.text(name), int(consumers), int(pending), delivered.decode(), _counted(read), _counted(lag),
        unread.decode(), oldest.decode(), int(idle_ms),
    )  # fmt: skip


def _counted(number: int) -> int | None:
    return None if number < 0 else int(number)


def _can_be_named(name: str) -> bool:
    try:
        check_name("stream", name)
    except ConfigurationError:
        return False  # not from Penstock: no list could show it
    return "\N{REPLACEMENT CHARACTER}" not in name  # no UTF-8
