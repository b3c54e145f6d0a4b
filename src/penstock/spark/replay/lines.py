"""Messages in a file: a JSON object on each line.

    {"stream": "orders", "id": "1700000000000-0", "data": "...", "key": "...", "headers": {}, "message_id": "..."}

All but the payload may be missing. `data` is text, or any other JSON, which is then the payload; `data_base64` is
bytes. `fields` are further fields of the entry, as texts.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.spark.archive.layout import LAST_MS
from penstock.spark.archive.rows import SCHEMA

FILE_SCHEMA = SCHEMA
_ROWS = 10_000
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_MOST = (1 << 63) - 1  # of a column
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
            except UnicodeEncodeError:
                raise ConfigurationError(
                    f"{file}, line {number}: it has half a surrogate pair, which is no text"
                ) from None
            except (ValueError, TypeError, RecursionError) as error:
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
        raise ValueError("it has no id, so it is at no time: leave out --since and --until")
    entry_id = str(document.get("id", f"0-{number}"))
    if not _ID.fullmatch(entry_id):
        raise ValueError(f"id {entry_id!r} is none: write it as 1794700800000-0")
    ms, seq = ids.parse(entry_id) if ids.is_id(entry_id) else (_MOST, _MOST)
    if max(ms * 1000, seq) > _MOST:
        raise ValueError(f"id {entry_id!r} is too great")
    return {
        "stream": _text(document, "stream") or place,
        "id": entry_id,
        "ms": ms,
        "seq": seq,
        "timestamp": ms * 1000 if ms <= LAST_MS else None,
        "data": _payload(document),
        "key": _text(document, "key"),
        "headers": list(_texts(document, "headers").items()),
        "message_id": _text(document, "message_id"),
        "fields": [(name, value.encode()) for name, value in _texts(document, "fields").items()],
    }


def _text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be text")
    (value or "").encode()  # a lone surrogate, which JSON lets through, is no text
    return value


def _texts(document: dict[str, Any], name: str) -> dict[str, str]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or any(isinstance(each, dict | list) or each is None for each in value.values()):
        raise TypeError(f"{name} must be an object of texts")
    found = {key: each if isinstance(each, str) else json.dumps(each) for key, each in value.items()}
    "".join(itertools.chain.from_iterable(found.items())).encode()
    return found


def _payload(document: dict[str, Any]) -> bytes:
    if "data_base64" in document:
        return base64.b64decode(_text(document, "data_base64") or "", validate=True)
    data = document["data"]
    if isinstance(data, str):
        return data.encode()
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
