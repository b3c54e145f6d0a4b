"""Consumer names that no other worker has."""

from __future__ import annotations

import os
import secrets
import socket

MAX_LENGTH = 64


def unique_worker_name(group: str, hostname: str | None = None, pid: int | None = None) -> str:
    """Return `<group>_<hostname>_<pid and 8 random digits, in hex>`, at most 64 characters long.

    The group is cut first, down to one character, then the hostname; the unique part stays whole. Without
    `hostname` and `pid` those of this process are taken.
    """
    process = os.getpid() if pid is None else pid
    # Drawn from the system and not from `random`: forked workers share its state and would get the same name.
    unique = f"{process:x}{secrets.token_hex(4)}"
    room = MAX_LENGTH - len(unique) - len("__")
    # The tail of the hostname is kept: that is where pods of one deployment differ.
    host = (hostname or socket.gethostname() or "localhost")[-(room - 1) :]
    return f"{group[: room - len(host)]}_{host}_{unique}"
