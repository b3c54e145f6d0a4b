"""Messages in a file: a JSON object on each line.

    {"stream": "orders", "id": "1700000000000-0", "data": "...", "key": "...", "headers": {}, "message_id": "..."}

All but the payload may be missing. `data` is text, or any other JSON, which is then the payload; `data_base64` is
bytes. `fields` are further fields of the entry, as texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.spark.archive.rows import SCHEMA

FILE_SCHEMA = SCHEMA
_ROWS = 10_000
_KNOWN = {"stream", "id", "ms", "seq", "timestamp", "data", "data_base64", "key", "headers", "message_id", "fields"}


def read_lines(file: Path, *, needs_id: bool) -> Iterator[pa.RecordBatch]:
    """Return the messages of a file; raise ConfigurationError with the number of a line that is none."""
    rows: list[dict[str, Any]] = []
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(json.loads(line), f"file:{file.name}", number, needs_id=needs_id))
            except (ValueError, TypeError, AttributeError) as error:
                raise ConfigurationError(f"{file}, line {number}: {error}") from None
            if len(rows) >= _ROWS:
                yield pa.RecordBatch.from_pylist(rows, FILE_SCHEMA)
                rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, FILE_SCHEMA)


def _row(document: Any, place: str, number: int, *, needs_id: bool) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TypeError("a line must be a JSON object")
    unknown = sorted(document.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"unknown name {unknown[0]!r}; known: {', '.join(sorted(_KNOWN))}")
    if ("data" in document) == ("data_base64" in document):
        raise ValueError("give the payload as data or as data_base64")
    if needs_id and "id" not in document:
        raise ValueError("it has no id, so it is at no time: leave out --from and --to")
    entry_id = str(document.get("id", f"0-{number}"))
    ms, seq = ids.parse(entry_id)
    return {
        "stream": _text(document, "stream") or place,
        "id": entry_id,
        "ms": ms,
        "seq": seq,
        "timestamp": ms * 1000,
        "data": _payload(document),
        "key": _text(document, "key"),
        "headers": [(str(name), str(value)) for name, value in (document.get("headers") or {}).items()],
        "message_id": _text(document, "message_id"),
        "fields": [(str(name), str(value).encode()) for name, value in (document.get("fields") or {}).items()],
    }


def _text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    return value


def _payload(document: dict[str, Any]) -> bytes:
    if "data_base64" in document:
        return base64.b64decode(document["data_base64"], validate=True)
    data = document["data"]
    return data.encode() if isinstance(data, str) else json.dumps(data, separators=(",", ":")).encode()
