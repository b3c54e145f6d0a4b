"""Commands as the bytes that are sent, for both halves of the transport."""

from __future__ import annotations

from typing import TypeAlias

import hiredis

Command: TypeAlias = tuple[bytes | str | int, ...]


def pack(command: Command) -> bytes:
    """Return a command in the protocol of Redis."""
    # A signal may arrive while a number becomes a text. hiredis does not notice what its handler raises there, such as
    # KeyboardInterrupt: it uses the text that it did not get, and the process dies. In Python it is raised.
    words = tuple([str(word) if word.__class__ is int else word for word in command])
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub allows one word only
    return packed
