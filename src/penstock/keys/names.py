"""Rules for names and keys, and the part of a key that a cluster hashes."""

from __future__ import annotations

from penstock.errors import ClusterSlotError, ConfigurationError

MAX_NAME = 512
_FORBIDDEN = "\0\r\n"


def check_name(what: str, name: str, max_length: int = MAX_NAME) -> str:
    """Return the name if it can be a key or a group, else raise ConfigurationError."""
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} must be a str, not {type(name).__name__}")
    if not name or not name.strip():
        raise ConfigurationError(f"{what} must not be empty or blank: use a name such as 'orders'")
    if not is_utf8(name):
        raise ConfigurationError(f"{what} must not contain lone surrogates, which UTF-8 cannot encode: {name[:40]!r}")
    if len(name.encode()) > max_length:
        raise ConfigurationError(
            f"{what} has {len(name.encode())} bytes, more than the limit of {max_length}: {name[:40]!r}..."
        )
    if any(c in name for c in _FORBIDDEN):
        raise ConfigurationError(f"{what} must not contain line breaks or NUL: {name!r}")
    return name


def is_utf8(text: str) -> bool:
    """Return whether the text can be encoded: lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def hash_tag(key: str) -> str | None:
    """Return the part of the key that a cluster hashes, or None if it hashes the whole key."""
    start = key.find("{")
    if start < 0:
        return None
    end = key.find("}", start + 1)
    return key[start + 1 : end] if end > start + 1 else None


def check_braces(what: str, name: str, example: str) -> None:
    """Raise ConfigurationError for braces that are no hash tag: they would make "{name}" hash differently from it."""
    if hash_tag(name) is None and ("{" in name or "}" in name):
        raise ConfigurationError(
            f"{what} {name!r} contains braces that do not form a hash tag; write a tag as in {example!r}, or use no "
            "braces"
        )


def tagged(key: str) -> str:
    """Return a prefix whose keys are in the slot of the key: the key itself if it has a hash tag, else in braces."""
    return key if hash_tag(key) is not None else f"{{{key}}}"


def hashed_part(key: str) -> str:
    """Return the part of the key that the cluster hashes."""
    tag = hash_tag(key)
    return key if tag is None else tag


def check_same_slot(stream: str, other: str, what: str) -> None:
    """Raise ClusterSlotError unless both keys are in one cluster slot."""
    if hashed_part(stream) != hashed_part(other):
        raise ClusterSlotError(
            f"{what} {other!r} and stream {stream!r} are in different cluster slots: give them the same hash "
            "tag, for example '{orders}_main' and '{orders}_dlq'"
        )


def check_dead_letters(stream: str, dead_letters: str, what: str, *, is_cluster: bool) -> None:
    """Raise ConfigurationError unless the dead letters of a stream can be stored in the other one."""
    if stream == dead_letters:
        raise ConfigurationError(
            f"{what}={dead_letters!r} is the stream itself: its dead letters would be handled again forever. "
            f"Name another stream, or leave {what} out"
        )
    if is_cluster:
        check_same_slot(stream, dead_letters, what)
