"""How kinds, ids and days become names in a file system or an object store, and back."""

from __future__ import annotations

import hashlib
import re
import zlib
from datetime import UTC, datetime

from penstock.task import Result

MAX_KIND_NAME = 100  # with an id of 128 characters and the ending it must fit into the 255 bytes of a file name
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_PLAIN = re.compile(rb"[^0-9A-Za-z_.-]|^\.")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})|--")
_TIMED_ID = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


def kind_name(kind: str) -> str:
    """Return the kind as a part of a file name: `-` is doubled, what is not plain ASCII becomes `=XX` per byte.

    A kind that would be too long is cut and ends in a hash, as the only form that cannot be turned back.
    """
    raw = kind.encode()
    name = _PLAIN.sub(lambda found: b"=%02X" % found[0][0], raw).replace(b"-", b"--").decode()
    if len(name) <= MAX_KIND_NAME:
        return name
    return f"{name[:60].rstrip('-=')}=_{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def kind_of(name: str) -> str | None:
    """Return the kind that a name stands for, or None for one that was cut or that we never write."""
    if "=_" in name:
        return None
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"-", name.encode())
    try:
        kind = raw.decode()
    except UnicodeDecodeError:
        return None
    return kind if kind and kind_name(kind) == name else None


def split(stem: str) -> tuple[str, str] | None:
    """Return the kind's name and the task id of `<kind>-<id>`: the only single `-` before a letter or digit."""
    found = re.fullmatch(r"((?:[^-]|--)+)-([0-9A-Za-z].*)", stem)
    return (found[1], found[2]) if found else None


def day_of(result: Result) -> str:
    """Return the day, in UTC, on which the result was finished; a time without a zone is taken as UTC."""
    return _in_utc(result.finished_at).date().isoformat()


def bucket_of(task_id: str) -> str:
    """Return the folder in which an id is looked up.

    Ids that begin with their time lie together for about 17 minutes each, so that a batch touches one folder or two;
    all others are spread over 256.
    """
    if _TIMED_ID.fullmatch(task_id):
        return task_id[:7]
    return f"x{zlib.crc32(task_id.encode()) & 0xFF:02x}"


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
