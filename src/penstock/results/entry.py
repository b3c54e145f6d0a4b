"""StoredResult: a result as a store holds it, by its bytes, and the names that its kind, id and day have there."""

from __future__ import annotations

import hashlib
import logging
import re
import zlib
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.errors import ConfigurationError, DecodeError
from penstock.task import Result, decode_result, encode

log = logging.getLogger(__package__)  # by this name in both halves, which share the module
MAX_KIND_NAME = 100  # with an id of 128 characters and the ending it must fit into the 255 bytes of a file name
_NOT_PLAIN = re.compile(rb"[^0-9A-Za-z_.-]|^\.")
_TIMED_ID = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


class StoredResult(NamedTuple):
    """A result and its bytes, by which results are compared."""

    result: Result
    raw: bytes


def entry_of(result: Result) -> StoredResult:
    """Return the entry of a result; raise EncodeError for one that cannot be stored at all."""
    if not isinstance(result, Result):
        raise ConfigurationError(f"save() needs a Result, not a {type(result).__name__}")
    return StoredResult(result, encode(result))


def read_entry(raw: bytes, where: object, task_id: str | None = None) -> StoredResult | None:
    """Return the result in these bytes; None, with a warning, if they hold none, or that of another task."""
    try:
        result = decode_result(raw)
    except DecodeError as error:
        reason = str(error)
    else:
        if task_id is None or result.task_id == task_id:
            return StoredResult(result, raw)
        reason = f"it belongs to task {result.task_id}"
    log.warning("skipped %s, which does not hold a valid result: %s", where, reason)
    return None


def kind_name(kind: str) -> str:
    """Return the kind as a part of a file name: `-` is doubled, what is not plain ASCII becomes `=XX` per byte.

    A kind that would be too long is cut and ends in a hash.
    """
    raw = kind.encode()
    name = _NOT_PLAIN.sub(lambda found: b"=%02X" % found[0][0], raw).replace(b"-", b"--").decode()
    if len(name) <= MAX_KIND_NAME:
        return name
    return f"{name[:60].rstrip('-=')}=_{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def split(stem: str) -> tuple[str, str] | None:
    """Return the kind's name and the task id of `<kind>-<id>`: the only single `-` before a letter or digit."""
    found = re.fullmatch(r"((?:[^-]|--)+)-([0-9A-Za-z].*)", stem)
    return (found[1], found[2]) if found else None


def day_of(result: Result) -> str:
    """Return the day, in UTC, on which the result was finished."""
    return in_utc(result.finished_at).date().isoformat()


def bucket_of(task_id: str) -> str:
    """Return the folder in which an id is looked up.

    Ids that begin with their time share a folder for about 17 minutes, so that a batch touches one or two; all others
    are spread over 256.
    """
    if _TIMED_ID.fullmatch(task_id):
        return task_id[:7]
    return f"x{zlib.crc32(task_id.encode()) & 0xFF:02x}"


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC; one without a zone is taken as UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
