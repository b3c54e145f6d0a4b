"""The audit stream: who did what, before it begins and when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import ids
from penstock.errors import NotFound
from penstock.keys import AUDIT_STREAM
from penstock.ops import Entry, Inspector, Page
from penstock.streams.producer import StreamProducer

_MAX_ENTRIES = 100_000
_NOT_RECORDED = frozenset({"back", "csrf", "value"})  # `value` is an edited payload, which may be secret and long
_MAX_RECORDED = 200  # characters of an argument


@dataclass(frozen=True, slots=True)
class Record:
    """What an entry of the audit stream says."""

    id: str
    at_ms: int
    event: str  # requested, done or failed
    action: str
    who: str
    arguments: dict[str, Any]
    text: str

    @property
    def is_ok(self) -> bool:
        """Whether it is no failure."""
        return self.event != "failed"


class Audit:
    """Writes and reads the audit stream. An action that cannot be recorded does not begin."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._producer = StreamProducer(inspector.client, AUDIT_STREAM, max_len=_MAX_ENTRIES, on_full="drop_oldest")

    async def write(self, event: str, action: str, who: str, given: list[tuple[str, str]], text: str = "") -> str:
        """Add an entry; return its id."""
        arguments: dict[str, list[str]] = {}
        for name, value in given:
            if name not in _NOT_RECORDED and value:
                arguments.setdefault(name, []).append(value[:_MAX_RECORDED])
        record = {"event": event, "action": action, "who": who, "arguments": arguments, "text": text}
        return await self._producer.push(record)

    async def page(self, cursor: str, limit: int) -> tuple[list[Record], str]:
        """Return records, the newest first, and the cursor of the next page."""
        try:
            found: Page[Entry] = await self._inspector.streams.entries(AUDIT_STREAM, limit=limit, cursor=cursor)
        except NotFound:
            return [], ""
        return [_record(entry) for entry in found.items], found.cursor

    async def record(self, record_id: str) -> Record | None:
        """Return one record; None if there is none."""
        if not ids.is_id(record_id):
            return None
        try:
            return _record(await self._inspector.streams.entry(AUDIT_STREAM, record_id))
        except NotFound:
            return None


def _record(entry: Entry) -> Record:
    # Any client may have written to the stream.
    record = entry.payload.value if isinstance(entry.payload.value, dict) else {}
    texts = {
        name: value if isinstance(value := record.get(name), str) else "" for name in ("event", "action", "who", "text")
    }
    arguments = record.get("arguments")
    return Record(
        entry.id, ids.parse(entry.id)[0], texts["event"], texts["action"], texts["who"],
        arguments if isinstance(arguments, dict) else {}, texts["text"],
    )  # fmt: skip
