"""Protection: payloads that are signed, or encrypted, and bound to their stream and their message id.

A protected payload begins with a mark that neither JSON nor MessagePack nor text can begin with:

    C1 'P' 'S' | 1 = signed, 2 = encrypted | length of the key id | key id | ...
    signed:    HMAC-SHA256 (32 bytes) | payload
    encrypted: nonce (12 bytes) | AES-256-GCM of the payload, with its tag

Signature and tag cover everything before them, the place of the message and the payload.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from penstock import envelope
from penstock.errors import ConfigurationError, NotAuthentic

Mode = Literal["sign", "encrypt"]
_MARK = b"\xc1PS"  # no JSON, no UTF-8, and the one byte that MessagePack never uses
_KINDS: dict[Mode, int] = {"sign": 1, "encrypt": 2}
_WANTED: dict[Mode, str] = {"sign": "signed", "encrypt": "encrypted"}
_MAC, _NONCE, _TAG = 32, 12, 16
_MAX_KEY_ID = 64
_MIN_KEY, _AES_KEY = 32, 32


class Protection:
    """Keys that sign or encrypt payloads; producers and consumers need the same ones.

    `keys` maps key ids to secrets of 32 bytes (signing takes longer ones too). New payloads use the key `current`, by
    default the last one; any of the keys opens a payload, so that keys are rotated by adding the new one everywhere,
    making it current, and taking the old one away when no message of it is left. With `accept_plain`, payloads without
    protection are let through: for the time of a migration only, because a stranger may write them.

    Guarantees: a payload that can be opened was protected with the key, for this stream and message id. A copy of the
    whole entry can be opened, too: deduplicate messages that must not run twice.
    """

    def __init__(
        self, mode: Mode, keys: Mapping[str, bytes], *, current: str | None = None, accept_plain: bool = False
    ) -> None:
        if mode not in tuple(_KINDS):  # what a file says may not be hashable
            raise ConfigurationError(f"mode={mode!r} must be 'sign' or 'encrypt'")
        self.mode, self.accept_plain = mode, bool(accept_plain)
        self._keys = {key_id: _checked(mode, key_id, key) for key_id, key in keys.items()}
        if not self._keys:
            raise ConfigurationError("a Protection needs at least one key")
        self._current = next(reversed(self._keys)) if current is None else current
        if self._current not in tuple(self._keys):
            raise ConfigurationError(f"current={current!r} is not one of the key ids")
        key_id = self._current.encode()
        self._head = _MARK + bytes((_KINDS[mode], len(key_id))) + key_id
        self._ciphers = {key_id: _cipher(key) for key_id, key in self._keys.items()} if mode == "encrypt" else {}

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file: `mode`, a table `keys` of key ids and base64, optionally `current`, `accept_plain`."""
        try:
            said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"cannot read the keys in {path}: {error}") from None
        if unknown := said.keys() - {"mode", "keys", "current", "accept_plain"}:
            raise ConfigurationError(
                f"{path}: unknown {', '.join(sorted(unknown))}; available: mode, keys, current, accept_plain"
            )
        keys = said.pop("keys", {})
        try:
            decoded = {key_id: base64.b64decode(key, validate=True) for key_id, key in keys.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError(f"{path}: keys must be a table that maps key ids to keys in base64") from None
        return cls(said.pop("mode", None), decoded, **said)

    def __repr__(self) -> str:
        """Show the key ids and no key."""
        return f"Protection({self.mode!r}, keys={list(self._keys)}, current={self._current!r})"

    def protect(self, raw: bytes, stream: str, message_id: str, *, is_repeatable: bool = False) -> bytes:
        """Return the payload, signed or encrypted for this stream and message id.

        If it is repeatable, the same payload gives the same bytes each time.
        """
        head, key_id = self._head, self._current
        covered = _covered(head, stream, message_id)
        if self.mode == "sign":
            return head + hmac.digest(self._keys[key_id], covered + raw, hashlib.sha256) + raw
        # From payload and place, a nonce is as unlikely to come again with other contents as a random one.
        nonce = hmac.digest(self._keys[key_id], b"nonce" + covered + raw, hashlib.sha256) if is_repeatable else b""
        nonce = nonce[:_NONCE] or os.urandom(_NONCE)
        sealed: bytes = self._ciphers[key_id].encrypt(nonce, raw, covered)
        return head + nonce + sealed

    def open(self, raw: bytes, stream: str, message_id: str) -> bytes:
        """Return the payload of a message; raise NotAuthentic unless it was protected for this stream and id."""
        if not is_protected(raw):
            if self.accept_plain:
                return raw
            raise NotAuthentic(f"the payload is not protected, and this reader requires it to be {_WANTED[self.mode]}")
        if raw[3] != _KINDS[self.mode]:
            raise NotAuthentic(f"the payload is not {_WANTED[self.mode]}, as this reader requires")
        end = 5 + raw[4]
        head, rest = raw[:end], raw[end:]
        key_id = head[5:].decode(errors="backslashreplace")
        if key_id not in self._keys:
            raise NotAuthentic(
                f"the payload is {_WANTED[self.mode]} with the key {key_id[:_MAX_KEY_ID]!r}, which this reader "
                "does not have"
            )
        covered = _covered(head, stream, message_id)
        opened = (
            self._verified(key_id, covered, rest) if self.mode == "sign" else self._decrypted(key_id, covered, rest)
        )
        if opened is None:
            raise NotAuthentic(
                f"the payload was changed, or was {_WANTED[self.mode]} for another stream or message id, or "
                f"with a different key under the id {key_id!r}"
            )
        return opened

    def _verified(self, key_id: str, covered: bytes, rest: bytes) -> bytes | None:
        said, payload = rest[:_MAC], rest[_MAC:]
        expected = hmac.digest(self._keys[key_id], covered + payload, hashlib.sha256)
        return payload if hmac.compare_digest(said, expected) else None

    def _decrypted(self, key_id: str, covered: bytes, rest: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        if len(rest) < _NONCE + _TAG:
            return None
        try:
            opened: bytes = self._ciphers[key_id].decrypt(rest[:_NONCE], rest[_NONCE:], covered)
        except InvalidTag:
            return None
        return opened


def payload_of(fields: Mapping[str, bytes], stream: str, protection: Protection | None) -> bytes | None:
    """Return the payload of an entry, opened if there is a protection; None if the entry has no payload."""
    raw = fields.get(envelope.DATA)
    if raw is None or protection is None:
        return raw
    return protection.open(raw, stream, fields.get(envelope.MESSAGE_ID, b"").decode(errors="replace"))


def is_protected(raw: bytes) -> bool:
    """Return whether a payload has the mark of a protected one."""
    return len(raw) >= 5 and raw.startswith(_MARK)


def _covered(head: bytes, stream: str, message_id: str) -> bytes:
    # Lengths first, so that no two places give the same bytes.
    parts = (stream.encode(errors="replace"), message_id.encode(errors="replace"))
    return b"".join((head, *(len(part).to_bytes(4, "big") + part for part in parts)))


def _checked(mode: Mode, key_id: object, key: object) -> bytes:
    if not isinstance(key_id, str) or not key_id.isascii() or not 0 < len(key_id) <= _MAX_KEY_ID:
        raise ConfigurationError(f"the key id {key_id!r} must be ASCII text of at most {_MAX_KEY_ID} characters")
    if not isinstance(key, bytes):
        raise ConfigurationError(f"the key {key_id!r} must be bytes, not {type(key).__name__}")
    if mode == "encrypt" and len(key) != _AES_KEY:
        raise ConfigurationError(f"the key {key_id!r} has {len(key)} bytes; AES-256 needs {_AES_KEY}: os.urandom(32)")
    if len(key) < _MIN_KEY:
        raise ConfigurationError(
            f"the key {key_id!r} has {len(key)} bytes; at least {_MIN_KEY} are needed: os.urandom(32)"
        )
    return key


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError(
            "encrypted payloads need the package cryptography: pip install 'penstock[crypto]'"
        ) from error
    return AESGCM(key)
