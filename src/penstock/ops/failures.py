"""Dead letters: parsed from records, compared with a filter, grouped by cause."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from penstock import dead_letter_record, envelope, ids
from penstock.ops.model import DeadLetterFilter, DeadLetterInfo, FailureGroup
from penstock.ops.payloads import Row, fields_of, shown
from penstock.protection import Protection

_LONGEST_NAME = 512
_FRAME = re.compile(r'^  File "(?:[^"]*[/\\])?([^"/\\]+)", line \d+, in (.+)$', re.MULTILINE)
# Ids, numbers and quoted values: they differ between messages of one cause.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"\b(?:0x)?(?=[a-fA-F-]*\d)[0-9a-fA-F-]++(?!\w)|\b\d++")  # without a step back
_LONGEST = 300


def fingerprint(reason: str, error: str, error_text: str, traceback: str) -> str:
    """Return a short text that is the same for failures of one cause: of one error raised in one function."""
    frames = _FRAME.findall(traceback)
    place = "/".join(frames[-1]) if frames else ""
    pattern = _NUMBERS.sub("#", _QUOTED.sub("'#'", error_text[:_LONGEST]))
    key = repr((reason, error, place, pattern))
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:12]


def letter_of(stream: str, row: Row, protection: Protection | None) -> DeadLetterInfo:
    """Parse an entry of a dead-letter stream; any client may have written it."""
    fields = fields_of(row)
    by_name = {each.name: each for each in fields}
    record = dead_letter_record.parse(
        row[0].decode(), [part for each in fields for part in (envelope.field_bytes(each.name), each.value)]
    )
    return DeadLetterInfo(
        stream=stream,
        id=record.id,
        reason=record.reason,
        error=record.error,
        error_text=record.error_text,
        traceback=record.traceback,
        source_stream=record.source_stream,
        source_id=record.source_id,
        group=record.group,
        consumer=record.consumer,
        attempts=record.attempts,
        deliveries=record.deliveries,
        redrives=record.redrives,
        dead_at_ms=record.dead_at_ms or ids.parse(record.id)[0],
        message_id=record.message_id,
        task_id=envelope.text(record.fields.get("task_id"), _LONGEST_NAME),
        task_kind=envelope.text(record.fields.get("kind"), _LONGEST_NAME),
        cut=record.cut,
        fingerprint=fingerprint(record.reason, record.error, record.error_text, record.traceback),
        payload=shown(by_name, record.source_stream, protection),
        fields=fields,
    )


def matches(letter: DeadLetterInfo, wanted: DeadLetterFilter) -> bool:
    """Return whether a filter selects a dead letter."""
    return (
        (not wanted.ids or letter.id in wanted.ids or bool(letter.task_id and letter.task_id in wanted.ids))
        and wanted.reason in {None, letter.reason}
        and wanted.error in {None, letter.error}
        and wanted.kind in {None, letter.task_kind}
        and wanted.fingerprint in {None, letter.fingerprint}
        and wanted.source in {None, letter.source_stream}
    )


def failure_group(letters: Sequence[DeadLetterInfo]) -> FailureGroup:
    """Return dead letters of one cause, the newest first, as a group."""
    newest = letters[0]
    times = [letter.dead_at_ms for letter in letters]
    sources = sorted({letter.source_stream for letter in letters})
    return FailureGroup(
        newest.fingerprint, newest.reason, newest.error, newest.error_text, len(letters), min(times), max(times),
        newest.id, tuple(sources),
    )  # fmt: skip
