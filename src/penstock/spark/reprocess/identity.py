"""What a result of a message is known by: the message's own id, so that repeating the work repeats no result."""

from __future__ import annotations

import hashlib

from penstock.errors import ConfigurationError
from penstock.task import check_id

_MOST_NAME = 60


def check_run_name(name: str) -> None:
    """Raise ConfigurationError for a name that cannot stand before an id."""
    check_id("--name", name)
    if len(name) > _MOST_NAME:
        raise ConfigurationError(f"--name has {len(name)} characters: {_MOST_NAME} are allowed")


def result_id(name: str | None, message_id: str | None, stream: str, entry_id: str) -> str:
    """Return the id of a message's result; of one without an id, or with an unusable one, a hash stands for it."""
    prefix = "" if name is None else f"{name}."
    known = message_id or f"{stream}/{entry_id}"
    try:
        check_id("id", prefix + known)
    except ConfigurationError:
        return f"{prefix}h{hashlib.sha256(known.encode()).hexdigest()[:32]}"
    return prefix + known
