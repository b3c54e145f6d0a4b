"""Which settings are secret, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

MASK: Final = "***"
_MIN_SECRET: Final = 4  # of what is masked wherever it occurs: shorter texts occur in everything
# `<key>_file` names a file to read the value from; anything else that ends in `_file` is a plain value.
READABLE_FROM_FILE: Final = frozenset(
    {"url", "dsn", "username", "password", "access_key_id", "secret_access_key", "session_token", "token"}
)
# Names of secrets, of settings as well as in connection strings; `key` alone is the key of a message.
_NAMES = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|credential|signature|(?<![a-z])sig(?![a-z])"
    r"|(?:[_-]|api|access|account|private|shared)keys?(?![a-z])"
)
_SECRET = re.compile(_NAMES, re.IGNORECASE)
# Everything up to the last @ is a login: passwords that are not percent-encoded may contain @ and /.
_LOGIN = re.compile(r"(?<=://)([^\s@:/?#]*)(:\S*)?@")
# In the query of a URL an & ends the value, elsewhere it may be part of it.
_ASSIGNED = re.compile(
    rf"""((?<![\w.-])[\w.-]*?(?:{_NAMES})[\w.-]*\s*=\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{{[^}}]*}}|\S+)""",
    re.IGNORECASE,
)
_ORACLE = re.compile(r"(jdbc:oracle:\w+:[^\s/@]*/)(\S*)@", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Return whether the value of this key is never shown."""
    return _SECRET.search(key) is not None and not key.endswith("_file")


def masked(key: str, value: Any) -> Any:
    """Return the value as it may be shown: a secret as `***`, a URL or connection string without its password."""
    if is_secret(key):
        return MASK if value not in (None, "") else value
    if isinstance(value, Mapping):
        return masked_options(value)
    if isinstance(value, list | tuple):
        return [masked(key, item) for item in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as they may be shown."""
    return {key: masked(key, value) for key, value in options.items()}


def masked_text(text: str) -> str:
    """Return a text with the passwords in its URLs and connection strings masked."""
    return _ORACLE.sub(rf"\1{MASK}@", _ASSIGNED.sub(_hide_assigned, _LOGIN.sub(_hide_login, text)))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with these secrets masked, also where it spells them as Python does.

    A secret from a URL may be percent-encoded; libraries decode it, and show it so.
    """
    plain = {spelling for secret in secrets for spelling in (secret, unquote(secret))}
    spelled = {spelling for secret in plain for spelling in (secret, repr(secret)[1:-1])}
    for secret in sorted(spelled, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, MASK)
    return text


def without_login(url: str) -> str:
    """Return a URL without user and password."""
    return _LOGIN.sub("", url)


def secrets_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every text that must not appear in a message about these options."""
    found: list[str] = []
    for key, value in options.items():
        if isinstance(value, Mapping):
            found += secrets_of(value)
        elif isinstance(value, str) and value and masked(key, value) != value:
            found += [value, *(part[1:] for _, part in _LOGIN.findall(value) if len(part) > 1)]
            found += [_assigned(match)[0].strip("'\"{}") for match in _ASSIGNED.finditer(value)]
            found += [part for _, part in _ORACLE.findall(value) if part]
    return tuple(found)


def _assigned(found: re.Match[str]) -> tuple[str, str]:
    """Return the secret that is assigned, and what stands behind it."""
    is_query = re.search(r"[?&][^\s?&]*$", found.string[: found.start(2)]) is not None
    secret, mark, rest = found[2].partition("&") if is_query else (found[2], "", "")
    return secret, mark + masked_text(rest)


def _hide_assigned(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}{_assigned(found)[1]}"


def _hide_login(found: re.Match[str]) -> str:
    # A name without a password is most often a password in the wrong place.
    return f"{found[1]}:{MASK}@" if found[2] else f"{MASK}@"
