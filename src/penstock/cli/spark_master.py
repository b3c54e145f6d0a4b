"""Where Spark is to compute, checked before its Java starts."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from penstock.errors import ConfigurationError

CONNECT = "sc://"
_CONNECT_PORT, _PATIENCE_S = 15002, 10.0
_MASTER = re.compile(r"local(\[.+\])?$|local-cluster\[.+\]$|spark://.+:\d+|yarn$|k8s://.+|mesos://.+|sc://.+")


def check_master(master: str | None, *, needs_classic: bool = False) -> None:
    """Raise ConfigurationError at once for what Spark would refuse, or wait for, when its Java is there."""
    if master is None:
        return
    if not _MASTER.match(master):
        raise ConfigurationError(
            f"--master {master!r} must be local[4], spark://host:7077, yarn, k8s://..., sc://host or the like"
        )
    if not master.startswith(CONNECT):
        return
    if needs_classic:
        raise ConfigurationError(
            f"--master {master}: this command does not run through Spark Connect; name local[4], spark://host:7077, "
            "yarn or k8s://..."
        )
    parts = urlsplit(master)  # a client of Spark Connect tries for minutes, without a word
    try:
        socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _PATIENCE_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--master {master}: no Spark Connect server can be reached ({error})") from None
