"""Imports a live queue of redis-message-queue into a queue of this library."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from penstock import dead_letter_record, envelope
from penstock.errors import ConfigurationError
from penstock.keys import ListQueueKeys, QueueKeys
from penstock.policy import Reason
from penstock.queue.model import GROUP, TEXT_TYPE, ImportReport, shortened_key
from penstock.redis.client import StreamClient
from penstock.redis.from_driver import client_of, is_cluster
from penstock.redis.reading import escaped
from penstock.redis.retry import Repeat

_PAGE = 100  # messages per page, and per script call at most
_CALL_BYTES = 1_000_000  # a script call sends every payload twice
_SEARCH = 1_000  # how far a message may have moved in its list since it was read
_ENVELOPE = b"\x1eRMQ1:"  # begins a message with an id; others are only payloads
_NO_ENTRY = "0-0"  # as the id of an entry that never existed
_MOVED, _LEASED, _WITHOUT_LEASE, _MOVED_WITH_KEY = 1, 2, 3, 4
_OF_AN_OPERATION = re.compile(r":publish_operation_result:[0-9a-f]{32}$")
OnProgress: TypeAlias = Callable[[ImportReport], object]
Args: TypeAlias = list[bytes | str | int]


async def import_queue(
    client: Any,
    name: str,
    *,
    key_separator: str = "::",
    dead_letter_queue: str | None = None,
    include_unleased: bool = False,
    is_dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Import the messages, dead letters, logs and deduplication keys of a queue of redis-message-queue 5.

    Guarantees: each message moves in one step, in order, and keeps its id. The import may run again, or twice at the
    same time, and while consumers of the old queue run: a leased message stays until its lease has expired. Messages
    that were taken without a lease (`visibility_timeout_seconds=None`) are only imported with `include_unleased`; stop
    their consumers first.

    `dead_letter_queue` names the dead letters if they are not in `<name>::dlq`. `on_progress` is called after every
    page with the counts so far. A dry run changes nothing, and counts what would be imported.
    """
    queue = QueueKeys.of(name, key_separator)
    if is_cluster(client):
        queue.check_one_slot()
    importer = _Importer(client_of(client), queue, dead_letter_queue, include_unleased, on_progress or (lambda _: None))
    return await (importer.count_only() if is_dry_run else importer.run())


class _Importer:
    def __init__(
        self, client: StreamClient, queue: QueueKeys, dead_letters: str | None, include_unleased: bool,
        on_progress: OnProgress,
    ) -> None:  # fmt: skip
        self._client, self._include_unleased, self._on_progress = client, include_unleased, on_progress
        self._old, self._keys = ListQueueKeys(queue.name, queue.separator), client.keys(queue.name)
        self._logs: dict[Literal["dead_letters", "completed", "failed"], tuple[str, str]] = {
            "dead_letters": (dead_letters or self._old.log("dlq"), dead_letters or queue.dead_letter),
            "completed": (self._old.log("completed"), queue.completed),
            "failed": (self._old.log("failed"), queue.failed),
        }
        self._report = ImportReport()

    async def run(self) -> ImportReport:
        """Import everything, oldest first; abandoned messages come first in the old queue, too."""
        await self._check_types()
        await self._move_messages(self._old.processing, "processing")
        await self._move_messages(self._old.pending, "pending")
        async for markers in self._markers():
            moved = await self._client.run("queue/import_markers", markers, [_NO_ENTRY], Repeat.IDEMPOTENT)
            self._count(dedup_keys=moved)
        if self._report.is_complete:
            for kind in self._logs:
                await self._move_records(kind)
        return self._report

    async def count_only(self) -> ImportReport:
        """Count what would be imported."""
        await self._check_types()
        self._count(pending=await self._length(self._old.pending))
        start = 0
        while page := await self._page(self._old.processing, start):
            start += len(page)
            self._count_in_flight(await self._states(page))
        async for markers in self._markers():
            self._count(dedup_keys=len(markers) // 2)
        for kind, (source, _) in self._logs.items():
            aside = await self._length(self._old.aside(source))
            self._count(**{kind: aside + (await self._length(source) if await self._type(source) == "list" else 0)})
        return self._report

    def _count(self, **more: int) -> None:
        so_far = {name: getattr(self._report, name) + count for name, count in more.items()}
        self._report = replace(self._report, **so_far)
        self._on_progress(self._report)

    # --- messages -----------------------------------------------------------------------------------

    async def _move_messages(self, source: str, kind: Literal["pending", "processing"]) -> None:
        kept = 0
        while page := await self._page(source, kept):
            for part in _parts(page):
                answers = await self._move(source, part, kept, has_leases=kind == "processing")
                left = [answer for answer in answers if answer in (_LEASED, _WITHOUT_LEASE)]
                kept += len(left)
                self._count(
                    **{kind: answers.count(_MOVED) + answers.count(_MOVED_WITH_KEY)},
                    dedup_keys=answers.count(_MOVED_WITH_KEY),
                    still_leased=left.count(_LEASED),
                    without_lease=left.count(_WITHOUT_LEASE),
                )

    async def _move(self, source: str, stored: list[bytes], kept: int, *, has_leases: bool) -> list[int]:
        tokens, claims = await self._leases(stored) if has_leases else ([b""] * len(stored), [b""] * len(stored))
        keys = [source, self._keys.stream, *self._old.leases]
        args: Args = [int(has_leases), int(self._include_unleased), kept + _SEARCH]
        for value, token, claim in zip(stored, tokens, claims, strict=True):
            message = StoredMessage.of(value)
            fields = message.fields()
            keys += [self._old.deduplication(message.default_key), self._keys.dedup(message.default_key)]
            if claim:
                keys.append(self._old.claim(claim.decode(errors="replace")))
            args += [value, token, claim, int(bool(claim)), message.default_key, len(fields), *fields]
        return list(await self._client.run("queue/import_messages", keys, args, Repeat.IDEMPOTENT))

    async def _leases(self, stored: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        # The token of each lease, and the claim by which it was taken; the claim of one without a lease has its value.
        _, tokens, _, _, _, claims = self._old.leases
        found = [token or b"" for token in await self._client.call(tokens, "HMGET", tokens, *stored)]
        owners = [token or value for token, value in zip(found, stored, strict=True)]
        return found, [claim or b"" for claim in await self._client.call(claims, "HMGET", claims, *owners)]

    async def _states(self, stored: list[bytes]) -> list[int]:
        deadlines = self._old.leases[0]
        seconds, micros = await self._client.call(deadlines, "TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        scores = await self._client.call(deadlines, "ZMSCORE", deadlines, *stored)
        free = _MOVED if self._include_unleased else _WITHOUT_LEASE
        return [free if score is None else _LEASED if float(score) > now_ms else _MOVED for score in scores]

    def _count_in_flight(self, states: list[int]) -> None:
        self._count(
            processing=states.count(_MOVED),
            still_leased=states.count(_LEASED),
            without_lease=states.count(_WITHOUT_LEASE),
        )

    # --- dead letters and logs ----------------------------------------------------------------------

    async def _move_records(self, kind: Literal["dead_letters", "completed", "failed"]) -> None:
        source, name = self._logs[kind]
        aside, target = self._old.aside(source), self._client.keys(name).stream
        await self._client.run("queue/import_aside", [source, aside], [], Repeat.IDEMPOTENT)
        while page := await self._page(aside, 0):
            for part in _parts(page):
                keys, args = [aside, target], Args([_SEARCH, _NO_ENTRY])
                for value in part:
                    message = StoredMessage.of(value)
                    is_dead = kind == "dead_letters"
                    fields = self._dead_letter(message, source) if is_dead else _log_line(message)
                    keys += [self._keys.dedup(message.default_key)] if is_dead else []
                    args += [value, len(fields), *fields]
                moved = await self._client.run("queue/import_records", keys, args, Repeat.IDEMPOTENT)
                self._count(**{kind: moved})

    def _dead_letter(self, message: StoredMessage, source: str) -> Args:
        text = f"imported from the dead letters of redis-message-queue in {source!r}, which keep only the payload"
        record = dead_letter_record.record(
            [], self._keys.stream, _NO_ENTRY, GROUP, "", Reason.MAX_DELIVERIES, None, 0, 0, error_text=text
        )
        return [*message.fields(), *record]

    # --- deduplication keys -------------------------------------------------------------------------

    async def _markers(self) -> AsyncIterator[list[str]]:
        # Pairs of an old and a new key. Keys that cannot be text were not written by redis-message-queue.
        prefix = self._old.deduplication("")
        cursor, pattern = b"0", f"{escaped(prefix)}*"
        while True:
            cursor, found = await self._client.call(prefix, "SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            names = [name.decode(errors="replace") for name in found]
            keys = [name for name in names if not _OF_AN_OPERATION.search(name) and name != prefix]
            for start in range(0, len(keys), _PAGE):
                page = keys[start : start + _PAGE]
                yield [key for old in page for key in (old, self._keys.dedup(shortened_key(old[len(prefix) :])))]
            if cursor == b"0":
                return

    # --- lists --------------------------------------------------------------------------------------

    async def _check_types(self) -> None:
        for key in (self._old.pending, self._old.processing):
            found = await self._type(key)
            if found not in ("none", "list"):
                raise ConfigurationError(
                    f"{key!r} is a {found}, not a list, so {self._old.name!r} is not a queue of "
                    "redis-message-queue; check its name and key_separator"
                )

    async def _type(self, key: str) -> str:
        return str((await self._client.call(key, "TYPE", key)).decode())

    async def _length(self, key: str) -> int:
        return int(await self._client.call(key, "LLEN", key))

    async def _page(self, key: str, start: int) -> list[bytes]:
        # The oldest are at the right end.
        found = await self._client.call(key, "LRANGE", key, -start - _PAGE, -start - 1)
        return list(reversed(found))


def _log_line(message: StoredMessage) -> Args:
    return [*message.fields(), "log_id", _NO_ENTRY, "log_attempts", 0]


def _parts(page: Sequence[bytes]) -> Iterator[list[bytes]]:
    # So few at a time that no script call blocks the server for long.
    part, size = list[bytes](), 0
    for value in page:
        if part and size + len(value) > _CALL_BYTES:
            yield part
            part, size = [], 0
        part.append(value)
        size += len(value)
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A value in a list of redis-message-queue."""

    payload: bytes
    message_id: str | None

    @classmethod
    def of(cls, stored: bytes) -> StoredMessage:
        """Parse a value; one that is not an envelope is a payload."""
        if stored.startswith(_ENVELOPE):
            try:
                found = json.loads(stored[len(_ENVELOPE) :])
                payload, message_id = found["payload"], found["id"]
            except (ValueError, TypeError, KeyError, RecursionError):
                return cls(stored, None)
            if isinstance(payload, str) and isinstance(message_id, str):
                return cls(payload.encode(errors="surrogatepass"), message_id)
        return cls(stored, None)

    @property
    def default_key(self) -> str:
        """The deduplication key that both libraries use for the message by default."""
        return hashlib.sha256(self.payload).hexdigest()

    def fields(self) -> list[bytes | str]:
        """Return the fields of its entry in a stream."""
        fields: list[bytes | str] = [envelope.DATA, self.payload]
        if self.message_id:
            fields += [envelope.MESSAGE_ID, self.message_id.encode(errors="replace")]
        if _is_text(self.payload):
            fields += [envelope.CONTENT_TYPE, TEXT_TYPE]
        return fields


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
