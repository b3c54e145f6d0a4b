"""Dead letters of streams, message queues, tasks and balanced services alike."""

from __future__ import annotations

import fnmatch
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock import dead_letter_record, envelope, ids
from penstock import task as task_values
from penstock.delivery.dead_letters import DeadLetters, DeadLetterStream
from penstock.errors import ConfigurationError, NotFound
from penstock.keys import BalancerKeys, QueueKeys, StreamKeys, TaskKeys, check_name
from penstock.keys.stream_names import queue_log, service_of, task_stream, without_tag
from penstock.model import DeadLetter
from penstock.number_checks import check_number, check_seconds
from penstock.ops.catalogue import MAX_PER_PAGE, STEP, Catalogue, StreamSnapshot, checked_text, kind_of
from penstock.ops.entries import SCANNED, EntryRange, read_entries, read_entry
from penstock.ops.failures import failure_group, letter_of, matches
from penstock.ops.model import (
    DeadLetterFilter,
    DeadLetterInfo,
    DeadLetterStreamInfo,
    FailureGroups,
    FieldValue,
    Page,
    RedriveReport,
    StreamKind,
)
from penstock.ops.payloads import encoded, shown
from penstock.redis.client import StreamClient
from penstock.redis.reading import newest_id
from penstock.redis.retry import OPERATION_TTL_S, Repeat
from penstock.runtime.aio import pause
from penstock.task import LIMITS
from penstock.tasks.dead_tasks import DeadTasks
from penstock.tasks.entries import TaskEntries
from penstock.times import LAST_MS

EVERYTHING = DeadLetterFilter()
_PAGE = 100  # records with tracebacks that one script reads
_SHORT = 512  # bytes of a payload that is not shown
MAX_SCANNED = 100_000  # among which a task, or the beginning of an id, is looked for: a few seconds
_TOGETHER = 100  # ids that one command deletes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where dead letters are, and what they were."""

    stream: str
    key: str
    kind: StreamKind
    owner: str
    last_id: str  # '' = not known
    is_mixed: bool  # its name says nothing: only entries with a reason are dead letters

    def holds(self, letter: DeadLetterInfo) -> bool:
        """Return whether an entry is a dead letter."""
        return bool(letter.reason) or not self.is_mixed


class _ServiceDeadLetters(DeadLetterStream[DeadLetter]):
    """The dead letters of a balanced service, whose entries have no `data`."""

    def __init__(self, client: StreamClient, key: str, service: str) -> None:
        super().__init__(client, key, dead_letter_record.parse)
        self._keys = BalancerKeys(service)

    async def _put_back(self, letter: DeadLetter, operation: str) -> str | None:
        origin = f"{letter.source_stream}/{letter.source_id}"
        fields = dead_letter_record.redriven(letter.fields, letter.redrives, origin, without=())
        keys = [self._key, self._keys.stream, self._keys.request(operation)]
        reply = await self._client.run(
            "streams/redrive", keys, [letter.id, OPERATION_TTL_S, *fields], Repeat.IDEMPOTENT
        )
        return reply.decode() if reply else None


class DeadLetterStreams:
    """The dead letters of one server.

    A `stream` is that of the dead letters, or what they belong to: `orders` for `orders_dlq` or `orders::dlq`, `jobs`
    for `jobs.dead`.
    """

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    # --- finding them -------------------------------------------------------------------------------

    async def streams(self, match: str = "*", *, limit: int = 100, cursor: str = "") -> Page[DeadLetterStreamInfo]:
        """Return streams of dead letters that are not empty, by name."""
        check_number("limit", limit)
        names = await self._catalogue.names()
        task_queues, present = await self._catalogue.task_queues(names), frozenset(names)
        names = [name for name in fnmatch.filter(names, match) if name > cursor]
        candidates, found = names[: max(limit, MAX_PER_PAGE)], list[DeadLetterStreamInfo]()
        for start in range(0, len(candidates), STEP):
            snapshots = await self._catalogue.snapshots(candidates[start : start + STEP], most_groups=1)
            for snapshot in snapshots.values():
                if snapshot.length and kind_of(snapshot, task_queues)[0] is StreamKind.DEAD_LETTERS:
                    place = self._place(snapshot, task_queues, present)
                    found.append(
                        DeadLetterStreamInfo(
                            snapshot.name, place.kind, place.owner, snapshot.length, snapshot.first_id, snapshot.last_id
                        )
                    )
                    if len(found) == limit:
                        return Page(tuple(found), snapshot.name if snapshot.name != names[-1] else "")
        return Page(tuple(found), candidates[-1] if len(candidates) < len(names) else "")

    async def resolve(self, stream: str) -> str:
        """Return the dead-letter stream that a name refers to; raise NotFound if there is none."""
        return (await self._find(stream)).stream

    async def _find(self, stream: str) -> _Place:
        names = [stream, *_usual(stream, is_cluster=self._client.is_cluster)]
        task_queues, snapshots = await self._catalogue.task_queues(names), await self._catalogue.snapshots(names)
        found = [snapshots[name] for name in names if name in snapshots]
        found = [snapshot for snapshot in found if kind_of(snapshot, task_queues)[0] is StreamKind.DEAD_LETTERS]
        if found:
            # Prefer default names: in a stream with another name, any client may have written such entries.
            snapshot = min(found, key=lambda snapshot: not kind_of(snapshot, task_queues)[1])
            source = kind_of(snapshot, task_queues)[1]
            candidates = [source, inside] if (inside := without_tag(source)) else []
            return self._place(snapshot, task_queues, await self._catalogue.snapshots(candidates))
        if stream in snapshots:
            raise NotFound(
                f"stream {stream!r} has no dead letters under a default name; pass the name of the stream that "
                "holds them"
            )
        raise NotFound(f"no dead-letter stream for {stream!r}; list dead letters with `penstock dlq ls`")

    def _place(self, snapshot: StreamSnapshot, task_queues: set[str], present: Collection[str]) -> _Place:
        _, owner = kind_of(snapshot, task_queues)
        is_mixed, of_tasks = not owner, task_stream(snapshot.name)
        if of_tasks and of_tasks[0] in task_queues:
            kind = StreamKind.TASKS
        elif queue_log(snapshot.name):
            kind = StreamKind.QUEUE
        elif (service := service_of(owner)) and snapshot.name == BalancerKeys(service).dead_letters:
            kind, owner = StreamKind.SERVICE, service
        else:
            kind = StreamKind.STREAM
            if owner not in present and (inside := without_tag(owner)):
                # `{session}_dlq` is of the stream `{session}` or, in a cluster, of a balanced stream `session`.
                owner = inside if inside in present else ""
        return _Place(
            snapshot.name, self._catalogue.keys(snapshot.name).stream, kind, owner, snapshot.last_id, is_mixed
        )

    # --- reading ------------------------------------------------------------------------------------

    async def page(
        self,
        stream: str,
        matching: DeadLetterFilter = EVERYTHING,
        *,
        newest_first: bool = True,
        limit: int = 50,
        cursor: str = "",
        max_value_bytes: int = 2_048,
    ) -> Page[DeadLetterInfo]:
        """Return dead letters that match; of each value no more than `max_value_bytes` are read."""
        check_number("limit", limit)
        place = await self._find(stream)
        return await self._page(place, matching, newest_first, limit, cursor, max_value_bytes)

    async def _page(
        self, place: _Place, matching: DeadLetterFilter, newest_first: bool, limit: int, cursor: str,
        max_value_bytes: int, fields: str = "",
    ) -> Page[DeadLetterInfo]:  # fmt: skip
        letters, further = await self._read(place, matching, newest_first, limit, cursor, max_value_bytes, fields)
        return Page(tuple(letter for letter in letters if place.holds(letter) and matches(letter, matching)), further)

    async def _read(
        self, place: _Place, matching: DeadLetterFilter, newest_first: bool, limit: int, cursor: str,
        max_value_bytes: int, fields: str = "",
    ) -> tuple[list[DeadLetterInfo], str]:  # fmt: skip
        """Return what the server selects: entries of the time, with the text."""
        matching = _between(matching)
        start = f"{matching.since_ms}-0" if matching.since_ms else "-"
        end = str(matching.until_ms) if matching.until_ms is not None else "+"
        if cursor:
            start, end = (start, ids.before(cursor)) if newest_first else (ids.after(cursor), end)
        ends = (end, start) if newest_first else (start, end)
        wanted = EntryRange(*ends, limit, max_value_bytes, newest_first, checked_text(matching.text or ""), fields)
        rows, further = await read_entries(self._client, place.key, wanted)
        return [letter_of(place.stream, row, self._client.protection) for row in rows], further

    async def show(self, stream: str, record_id: str, *, max_value_bytes: int = 1 << 20) -> DeadLetterInfo:
        """Return one dead letter, by the id of its record or of its task; raise NotFound if there is none."""
        place = await self._find(stream)
        named, is_complete = {record_id: record_id}, True
        if not ids.is_id(record_id):
            named, is_complete = await self._begin_with(place, record_id, MAX_SCANNED)
        if record_id in named:
            row = await read_entry(self._client, place.key, named[record_id], max_value_bytes)
            if row is not None:
                return letter_of(place.stream, row, self._client.protection)
        if not is_complete:
            raise NotFound(
                f"{place.stream!r} has no dead letter {record_id!r} among its newest {MAX_SCANNED:,}; pass the id "
                "of its record, which `penstock dlq ls` shows"
            )
        raise NotFound(
            f"{place.stream!r} has no dead letter {record_id!r}: it was redriven or deleted, or never existed"
        )

    async def begin_with(self, stream: str, text: str, *, most: int = MAX_SCANNED) -> tuple[dict[str, str], bool]:
        """Return the ids of records and tasks that begin with a text, each with that of its record, newest first.

        The newest `most` are looked at; the second value is whether that is all of them.
        """
        return await self._begin_with(await self._find(stream), text, most)

    async def _begin_with(self, place: _Place, text: str, most: int) -> tuple[dict[str, str], bool]:
        found, cursor, scanned = dict[str, str](), "", 0
        while scanned < most:
            count = min(_PAGE, most - scanned)
            letters, cursor = await self._read(place, EVERYTHING, True, count, cursor, _SHORT)
            scanned += max(1, len(letters))
            for letter in filter(place.holds, letters):
                for name in filter(None, (letter.id, letter.task_id)):
                    if name.startswith(text):
                        found.setdefault(name, letter.id)
            if not cursor:
                return found, True
        return found, False

    async def _scan(
        self, place: _Place, matching: DeadLetterFilter, max_value_bytes: int, fields: str = "", end: str = ""
    ) -> AsyncIterator[DeadLetterInfo]:
        # Oldest first, up to the record `end`.
        cursor = ""
        while True:
            page = await self._page(place, matching, False, _PAGE, cursor, max_value_bytes, fields)
            for letter in page.items:
                if end and ids.parse(letter.id) > ids.parse(end):
                    return
                yield letter
            cursor = page.cursor
            if not cursor:
                return

    async def records(self, stream: str, matching: DeadLetterFilter = EVERYTHING) -> AsyncIterator[DeadLetter]:
        """Yield the whole records that match, oldest first: for an export."""
        place = await self._find(stream)
        async for letter in self._scan(place, matching, _SHORT):
            rows = await self._client.call(place.key, "XRANGE", place.key, letter.id, letter.id)
            if rows:
                yield dead_letter_record.parse(letter.id, rows[0][1])

    async def failures(
        self, stream: str, matching: DeadLetterFilter = EVERYTHING, *, most: int = 10_000
    ) -> FailureGroups:
        """Return dead letters that match by cause, the most frequent first; the newest `most` are examined."""
        place = await self._find(stream)
        by_cause: dict[str, list[DeadLetterInfo]] = {}
        examined, read, cursor, fields = 0, 0, "", "" if matching.kind or matching.ids else dead_letter_record.MARK
        while examined < most:
            letters, cursor = await self._read(place, matching, True, _PAGE, cursor, _SHORT, fields)
            for letter in letters:
                if place.holds(letter) and matches(letter, matching):
                    read += 1
                    slim = replace(letter, fields=(), traceback="")
                    by_cause.setdefault(letter.fingerprint, []).append(slim)
            is_sparse = bool(matching.text) and len(letters) < _PAGE  # the server has looked at more than it returned
            examined += SCANNED if is_sparse else max(1, len(letters))
            if not cursor:
                break
        groups = [failure_group(letters) for letters in by_cause.values()]
        groups.sort(key=lambda group: (-group.count, group.fingerprint))
        return FailureGroups(tuple(groups), read, is_complete=not cursor)

    async def count(
        self, stream: str, matching: DeadLetterFilter = EVERYTHING, *, most: int = 100_000
    ) -> tuple[int, bool]:
        """Return how many match, and whether that is all of them: no more than `most` are counted."""
        place, found = await self._find(stream), 0
        if matching == EVERYTHING and not place.is_mixed:
            return int(await self._client.call(place.key, "XLEN", place.key)), True
        async for _ in self._scan(place, matching, _SHORT):
            found += 1
            if found == most:
                return found, False
        return found, True

    async def as_of_now(self, stream: str, matching: DeadLetterFilter = EVERYTHING) -> DeadLetterFilter:
        """Return the filter without dead letters that arrive later: for a question that is answered later."""
        if matching.ids:
            return matching
        place = await self._find(stream)
        newest_ms = min(ids.parse(place.last_id or await newest_id(self._client, place.key))[0], LAST_MS)
        return replace(matching, until_ms=min(newest_ms, newest_ms if matching.until_ms is None else matching.until_ms))

    # --- changes ------------------------------------------------------------------------------------

    async def redrive(
        self,
        stream: str,
        matching: DeadLetterFilter = EVERYTHING,
        *,
        to: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        per_second: float | None = None,
        max_redrives: int = 3,
    ) -> RedriveReport:
        """Put the dead letters that match back, oldest first, up to `limit` of them and no faster than `per_second`.

        `to` names the stream to return them to, if it cannot be derived from the name of the dead-letter stream.

        Guarantees: each moves in one step. What comes in meanwhile stays, and so does one that was redriven
        `max_redrives` times already.
        """
        check_number("max_redrives", max_redrives)
        if per_second is not None:
            check_seconds("per_second", per_second)
        place = await self._find(stream)
        store = self._store(place, to or place.owner)
        matched, refused, added = 0, 0, list[str]()
        async for letter in self._scan(
            place, matching, _SHORT, end=place.last_id or await newest_id(self._client, place.key)
        ):
            if limit is not None and matched - refused >= limit:
                return RedriveReport(matched, len(added), refused, tuple(added), dry_run, is_complete=False)
            matched += 1
            if letter.redrives >= max_redrives:
                refused += 1
            elif not dry_run:
                if per_second is not None and matched > 1:
                    await pause(1 / per_second)
                new_ids = await store.redrive([letter.id], max_redrives=max_redrives)
                added += new_ids
                refused += not new_ids
        return RedriveReport(matched, len(added), refused, tuple(added), dry_run)

    async def redrive_edited(self, stream: str, record_id: str, value: Any, *, to: str | None = None) -> str:
        """Put one dead letter back with another payload; return the id of its entry, or of its task.

        The value is written in the form that the payload had: JSON, MessagePack, or text; of a task it is its payload.
        """
        place = await self._find(stream)
        store = self._store(place, to or place.owner)
        letter = await store.record(record_id)
        if letter is None:
            raise NotFound(f"{place.stream!r} has no dead letter {record_id!r}")
        if isinstance(store, DeadTasks):
            edited = self._edited_task(place, letter, value)
        elif place.kind is StreamKind.SERVICE:
            raise ConfigurationError(
                "an entry of a balanced service cannot be edited: add the data stream again instead"
            )
        else:
            edited = self._edited(letter, value, self._catalogue.keys(to or place.owner).stream)
        new_id: str | None = await store.redrive_as(edited)
        if new_id is None:
            raise NotFound(
                f"dead letter {record_id} of {place.stream!r} was not redriven: it no longer exists, "
                "or its task is open again"
            )
        return new_id

    def _edited(self, letter: DeadLetter, value: Any, key: str) -> DeadLetter:
        by_name = {name: FieldValue(name, raw, len(raw)) for name, raw in letter.fields.items()}
        form = shown(by_name, letter.source_stream, self._client.protection).form
        raw = encoded(form, value)
        if self._client.protection is not None:
            raw = self._client.protection.protect(raw, key, letter.message_id or "")
        return replace(letter, fields={**letter.fields, envelope.DATA: raw})

    def _edited_task(self, place: _Place, letter: Any, value: Any) -> Any:
        task = letter.task
        if task is None:
            raise ConfigurationError(f"dead letter {letter.id} does not hold a readable task, so it cannot be edited")
        task = msgspec.structs.replace(task, payload=value)
        keys = TaskKeys.of(place.owner, self._client.prefix, self._client.is_cluster)
        raw = task_values.encode_task(task, LIMITS, task_values.encode)
        closed = TaskEntries(keys, self._client.protection).close(raw, task)
        return replace(letter, data=raw, fields={**letter.fields, envelope.DATA: closed})

    async def purge(
        self, stream: str, matching: DeadLetterFilter = EVERYTHING, *, dry_run: bool = False, limit: int | None = None
    ) -> int:
        """Delete the dead letters that match for good, oldest first; return how many, also for a dry run.

        Guarantees: dead letters that arrive meanwhile are kept.
        """
        place, chosen, gone = await self._find(stream), list[str](), 0
        async for letter in self._scan(
            place, matching, _SHORT, end=place.last_id or await newest_id(self._client, place.key)
        ):
            if limit is not None and gone + len(chosen) >= limit:
                break
            chosen.append(letter.id)
            if len(chosen) == _TOGETHER:
                gone += await self._delete(place, chosen, dry_run)
                chosen = []
        return gone + await self._delete(place, chosen, dry_run)

    async def _delete(self, place: _Place, chosen: Sequence[str], dry_run: bool) -> int:
        if dry_run or not chosen:
            return len(chosen)
        return int(await self._client.call(place.key, "XDEL", place.key, *chosen, repeat=Repeat.IDEMPOTENT))

    def _store(self, place: _Place, to: str) -> Any:
        if place.kind is StreamKind.TASKS:
            keys = TaskKeys.of(place.owner, self._client.prefix, self._client.is_cluster)
            return DeadTasks(self._client, keys, place.owner)
        if place.kind is StreamKind.SERVICE:
            return _ServiceDeadLetters(self._client, place.key, place.owner)
        if not to:
            raise ConfigurationError(
                f"cannot tell from the name {place.stream!r} which stream its dead letters belong to: pass the "
                "stream as `to` (--to)"
            )
        return DeadLetters(self._client, to, place.stream)


def _between(matching: DeadLetterFilter) -> DeadLetterFilter:
    """Return the same filter with the times between which its records were written: only these are read."""
    if not matching.ids or not all(map(ids.is_id, matching.ids)):  # tasks do not say when they were given up
        return matching
    times = [ids.parse(record_id)[0] for record_id in matching.ids]
    until_ms = max(times) if matching.until_ms is None else min(matching.until_ms, max(times))
    return replace(matching, since_ms=max(matching.since_ms, min(times)), until_ms=until_ms)


def _usual(name: str, *, is_cluster: bool) -> Iterator[str]:
    """Yield the names of the dead letters of what may be called so: a stream, a queue, a task queue or a service."""
    makers: tuple[Callable[[], str], ...] = (
        lambda: StreamKeys(name).default_dead_letters(),
        lambda: QueueKeys(name).dead_letter,
        lambda: TaskKeys.of(name, "", is_cluster).dead,
        lambda: BalancerKeys(name).dead_letters,
    )
    for make in makers:
        with suppress(ConfigurationError):  # a stream may have names that a task queue may not have
            yield check_name("stream", make())
