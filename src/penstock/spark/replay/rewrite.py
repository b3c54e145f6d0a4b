"""What becomes of a message when it is replayed: a new message id, and headers that tell where it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock import dead_letter_record, envelope
from penstock.dead_letter_record import CUT, WELL_KNOWN, kept_fields
from penstock.spark.sink.entries import MAX_FIELDS, MAX_NAME

Pairs: TypeAlias = list[tuple[str, Any]]
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
_MOST_OTHERS = MAX_FIELDS - len(WELL_KNOWN) - 1  # fields of others, beside those that Penstock knows and `dlq_cut`
_REPLACED = "\ufffd"  # in a text: what was no UTF-8
_SOURCE, _SOURCE_ID = dead_letter_record.FIELDS["source_stream"], dead_letter_record.FIELDS["source_id"]


@dataclass
class Counts:
    """What was found."""

    wanted: int = 0
    looping: int = 0  # a replay wrote them into the stream where they would go again
    empty: int = 0  # without a payload
    cut: int = 0  # written without some of their fields: there is no room for all


class Rewriter:
    """Rewrites the messages of one replay."""

    def __init__(self, name: str, into: str) -> None:
        self._name, self._into = name, into

    def rewrite(self, batch: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Return the messages to be written."""
        kept: list[bool] = []
        made: list[tuple[Pairs, str, Pairs]] = []
        key = batch.column("key")
        is_odd = pc.or_(pc.greater(pc.utf8_length(key), MAX_NAME), pc.match_substring(key, _REPLACED)).fill_null(False)
        has_data = batch.column("data").is_valid().to_pylist()
        given = [batch.column(name).to_pylist() for name in ("stream", "id", "headers", "fields")]
        for row in zip(is_odd.to_pylist(), has_data, *given, strict=True):
            message = self._message(*row, counts=counts)
            kept.append(message is not None)
            if message is not None:
                made.append(message)
        counts.wanted += len(made)
        headers, ids, fields = zip(*made, strict=True) if made else ((), (), ())
        # Payloads and keys stay as they are: they are not touched row by row.
        rest = batch if len(made) == batch.num_rows else batch.filter(pa.array(kept, pa.bool_()))
        key = rest.column("key")
        is_field = pa.array([bool(pairs) and pairs[0][0] == envelope.KEY for pairs in fields], pa.bool_())
        columns = {
            "data": rest.column("data"),
            "key": pc.if_else(pc.or_(pc.equal(key, ""), is_field), None, key),
            "headers": headers,
            "message_id": ids,
            "fields": fields,
        }
        return pa.RecordBatch.from_arrays([_array(columns[each.name], each.type) for each in SCHEMA], schema=SCHEMA)

    def _message(
        self, has_odd_key: bool, has_data: bool, stream: str, entry_id: str, pairs: Any, fields: Any, *, counts: Counts
    ) -> tuple[Pairs, str, Pairs] | None:
        """Return the headers, the message id and the further fields; None if it is not to be written."""
        headers = dict(pairs or ())
        given = dict(fields or ())
        if _SOURCE_ID in given and _SOURCE in given:
            stream, entry_id = envelope.text(given[_SOURCE]), envelope.text(given[_SOURCE_ID])
        if self._is_loop(stream, headers):
            counts.looping += 1
            return None
        kept = [pair for pair in given.items() if pair[0] not in _LEFT and not dead_letter_record.is_mark(pair[0])]
        if has_odd_key and envelope.KEY in given:
            kept.insert(0, (envelope.KEY, given[envelope.KEY]))  # as it was: the text of the column is not, or too long
        if len(kept) > _MOST_OTHERS:
            kept = _cut(kept, counts)
        if not has_data and not kept:
            counts.empty += 1
            return None
        place = f"{stream}/{entry_id}"
        origin = headers.setdefault(REPLAY_OF, place)
        headers[REPLAY] = self._name
        return list(headers.items()), message_id(self._name, origin, place), kept

    def _is_loop(self, stream: str, headers: dict[str, str]) -> bool:
        if REPLAY_OF not in headers:
            return False
        return self._into in (stream, headers[REPLAY_OF].rpartition("/")[0])


def _cut(fields: Pairs, counts: Counts) -> Pairs:
    flat, cut = kept_fields(envelope.as_fields(dict(fields)), _MOST_OTHERS)
    if not cut:
        return fields
    counts.cut += 1
    return list({**envelope.as_mapping(flat), CUT: cut.encode()}.items())


def message_id(name: str, origin: str, place: str) -> str:
    """Return the id of a replayed message: the same whenever the same replay writes it."""
    return hashlib.sha256(f"{name}\0{origin}\0{place}".encode()).hexdigest()[:32]


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
