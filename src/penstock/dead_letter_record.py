"""The record of a dead letter: the fields of the entry as they were, and what became of it in fields called `dlq_...`.

Streams, queues, tasks, the balancer, Spark and the importer write it and read it here. Scripts that copy an entry
inside the server have the same limits in `shared/kept_fields.lua`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Mapping, Sequence

from penstock import envelope
from penstock.errors import DecodeError, name_of, text_of
from penstock.model import DeadLetter

MARK = "dlq_"
CUT = "dlq_cut"  # also in what is redriven: its handler should know that fields are missing
ORIGIN = "origin"  # field of a redriven entry: where the message was first published
# The attributes of a DeadLetter, and in which fields they are.
FIELDS = {
    "reason": "dlq_reason",
    "source_stream": "dlq_source",
    "source_id": "dlq_id",
    "group": "dlq_group",
    "consumer": "dlq_consumer",
    "error": "dlq_error",
    "error_text": "dlq_error_text",
    "traceback": "dlq_traceback",
    "cut": CUT,
    "attempts": "dlq_attempts",
    "deliveries": "dlq_deliveries",
    "dead_at": "dlq_time",
}
MAX_TRACEBACK = 8_000
MAX_FIELDS = 2_000  # of an entry that a copy keeps: Lua hands at most 8,000 arguments to a command
MAX_BYTES = 16 << 20  # likewise, without `data`
# Kept before all others, in every copy of an entry.
WELL_KNOWN = dict.fromkeys(
    name.encode()
    for name in (
        envelope.DATA, envelope.MESSAGE_ID, envelope.KEY, envelope.HEADERS, envelope.CONTENT_TYPE,
        envelope.EXPIRES_AT, envelope.REDRIVES, envelope.DEDUP_KEY, ORIGIN, CUT,
        "task_id", "kind", "attempts", "lbs-input",
    )
)  # fmt: skip
_DATA = envelope.DATA.encode()
Record = list[bytes | str | int]


def record(
    fields: Sequence[bytes], source: str, entry_id: str, group: str, consumer: str, reason: str,
    error: BaseException | None, attempts: int, deliveries: int, *, error_text: str | None = None,
) -> Record:  # fmt: skip
    """Return the fields of a dead letter: those of the entry, as far as they fit, and what happened to it."""
    kept, cut = kept_fields(fields)
    attributes = {
        "reason": str(reason),
        "source_stream": source,
        "source_id": entry_id,
        "group": group,
        "consumer": consumer,
        "error": class_of(error),
        "error_text": error_text if error_text is not None else kept_text(error),
        "traceback": traceback_of(error),
        "attempts": attempts,
        "deliveries": deliveries,
        "dead_at": time.time_ns() // 1_000_000,
    }
    happened = (part for attribute, value in attributes.items() for part in (FIELDS[attribute], value))
    return [*kept, *((CUT, cut) if cut else ()), *happened]


def parse(entry_id: str, fields: Sequence[bytes]) -> DeadLetter:
    """Read a record from any writer: missing fields are empty, and invalid numbers are 0."""
    by_name = envelope.as_mapping(fields)

    def text(attribute: str) -> str:
        return envelope.text(by_name.get(FIELDS[attribute]), MAX_TRACEBACK)

    def number(name: str) -> int:
        return envelope.number(by_name.get(name)) or 0

    return DeadLetter(
        id=entry_id,
        reason=text("reason"),
        source_stream=text("source_stream"),
        source_id=text("source_id"),
        group=text("group"),
        consumer=text("consumer"),
        error=text("error"),
        error_text=text("error_text"),
        attempts=number(FIELDS["attempts"]),
        deliveries=number(FIELDS["deliveries"]),
        dead_at_ms=number(FIELDS["dead_at"]),
        message_id=envelope.text(by_name.get(envelope.MESSAGE_ID)) or None,
        redrives=number(envelope.REDRIVES),
        fields=by_name,
        traceback=text("traceback"),
        cut=text("cut"),
    )


def is_mark(name: str) -> bool:
    """Return whether a field was added by a dead letter, and is not part of the entry."""
    return name.startswith(MARK) and name != CUT


def redriven(fields: Mapping[str, bytes], redrives: int, origin: str, without: Collection[str]) -> Record:
    """Return the fields of the entry that a record becomes when it is put back."""
    kept = {name: value for name, value in fields.items() if not is_mark(name) and name not in without}
    kept.setdefault(ORIGIN, origin.encode())
    kept[envelope.REDRIVES] = str(redrives + 1).encode()
    flat, cut = kept_fields(envelope.as_fields(kept))
    return [*flat, *((CUT, cut) if cut else ())]


def own_fields(fields: Sequence[bytes]) -> list[bytes]:
    """Return the fields that Penstock itself writes, each once, without those of other programs."""
    found = {name: value for name, value in zip(fields[::2], fields[1::2], strict=True) if name in WELL_KNOWN}
    return [part for field in found.items() for part in field]


def kept_fields(fields: Sequence[bytes], most: int = MAX_FIELDS) -> tuple[Sequence[bytes], str]:
    """Return the fields of an entry that a copy of it has room for, and what was cut: '' = nothing.

    The payload is always kept, then what Penstock knows, then the others in their order. A field is kept whole or not
    at all; of fields with one name the last one, which is the one that counts.
    """
    size = sum(map(len, fields))
    if len(fields) <= 2 * most and size <= MAX_BYTES:
        return fields, ""
    by_name = dict(zip(fields[::2], fields[1::2], strict=True))
    kept: list[bytes] = []
    others, room = 0, MAX_BYTES
    for name in dict.fromkeys((*WELL_KNOWN, *by_name)):
        value = by_name.get(name)
        if value is None:
            continue
        needed = 0 if name == _DATA else len(name) + len(value)
        is_other = name not in WELL_KNOWN
        if needed <= room and not (is_other and others == most):
            kept += (name, value)
            room -= needed
            others += is_other
    left = len(fields) // 2 - len(kept) // 2
    return kept, f"{left} fields, {size - sum(map(len, kept))} bytes" if left else ""


# --- errors -----------------------------------------------------------------------------------------


def class_of(error: BaseException | None) -> str:
    """Return the name of the class of an error; '' for none."""
    return "" if error is None else name_of(error)


def kept_text(error: BaseException | None) -> str:
    """Return what an error says, as far as it is kept; '' for none."""
    return "" if error is None else text_of(error)


def traceback_of(error: BaseException | None) -> str:
    """Return the end of the traceback of an error; '' if it would not help: no code of the user failed."""
    if error is None or isinstance(error, DecodeError) or (error.__traceback__ is None and error.__cause__ is None):
        return ""
    try:
        lines = traceback.format_exception(error, limit=-50)
        text = "".join(lines).encode(errors="replace").decode()  # without lone surrogates, which UTF-8 cannot hold
        return text[-MAX_TRACEBACK:]
    except BaseException as failure:  # formatting calls code of the user's
        return f"{name_of(error)}; formatting its traceback raised {name_of(failure)}"
