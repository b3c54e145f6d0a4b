"""What becomes of a message when it is replayed: a new message id, and headers that tell where it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock import envelope

REPLAY_OF = "replay_of"  # header: stream/id of the entry that was first published
REPLAY = "replay"  # header: name of the last replay
SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("message_id", pa.string()),
        ("fields", pa.map_(pa.string(), pa.binary())),
    ]
)
# What has a column of its own, or was about the life of the old entry.
_LEFT = {
    envelope.DATA, envelope.KEY, envelope.HEADERS, envelope.MESSAGE_ID,
    envelope.EXPIRES_AT, envelope.DEDUP_KEY, envelope.REDRIVES,
}  # fmt: skip
_DEAD = "dlq_"


@dataclass
class Counts:
    """What was found."""

    wanted: int = 0
    looping: int = 0  # a replay wrote them into the stream where they would go again
    empty: int = 0  # without a payload


class Rewriter:
    """Rewrites the messages of one replay."""

    def __init__(self, name: str, into: str) -> None:
        self._name, self._into = name, into

    def rewrite(self, batch: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Return the messages to be written."""
        made = []
        names = ("stream", "id", "data", "key", "headers", "fields")
        for row in zip(*[batch.column(name).to_pylist() for name in names], strict=True):
            message = self._message(*row, counts=counts)
            if message is not None:
                made.append(message)
        counts.wanted += len(made)
        return pa.RecordBatch.from_pylist(made, SCHEMA)

    def _message(
        self,
        stream: str,
        entry_id: str,
        data: bytes | None,
        key: str | None,
        pairs: Any,
        fields: Any,
        *,
        counts: Counts,
    ) -> dict[str, Any] | None:
        given, headers = dict(fields or ()), dict(pairs or ())
        if _DEAD + "id" in given:
            stream = given[_DEAD + "source"].decode(errors="replace")
            entry_id = given[_DEAD + "id"].decode(errors="replace")
        if self._is_loop(stream, headers):
            counts.looping += 1
            return None
        kept = [(name, value) for name, value in given.items() if name not in _LEFT and not name.startswith(_DEAD)]
        if data is None and not kept:
            counts.empty += 1
            return None
        origin = headers.setdefault(REPLAY_OF, f"{stream}/{entry_id}")
        headers[REPLAY] = self._name
        return {
            "data": data,
            "key": key or None,
            "headers": list(headers.items()),
            "message_id": message_id(self._name, origin, f"{stream}/{entry_id}"),
            "fields": kept,
        }

    def _is_loop(self, stream: str, headers: dict[str, str]) -> bool:
        if REPLAY_OF not in headers:
            return False
        return self._into in (stream, headers[REPLAY_OF].rpartition("/")[0])


def message_id(name: str, origin: str, place: str) -> str:
    """Return the id of a replayed message: the same whenever the same replay writes it."""
    return hashlib.sha256(f"{name}\0{origin}\0{place}".encode()).hexdigest()[:32]
