"""Packs commands into bytes, for both transports."""

from __future__ import annotations

from typing import TypeAlias

import hiredis

Command: TypeAlias = tuple[bytes | str | int, ...]


def pack(command: Command) -> bytes:
    """Return a command in the protocol of Redis."""
    # Convert numbers here: hiredis does not check for an exception that a signal handler (KeyboardInterrupt) raises
    # while it converts one, and crashes the process.
    words = tuple([str(word) if word.__class__ is int else word for word in command])
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub allows one word only
    return packed
