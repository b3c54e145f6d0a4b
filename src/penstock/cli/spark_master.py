"""`--master`: where the commands that need Spark compute."""

from __future__ import annotations

import re
import socket
from typing import Annotated
from urllib.parse import urlsplit

import typer

from penstock.errors import ConfigurationError

_CONNECT, _CONNECT_PORT, _PATIENCE_S = "sc://", 15002, 10.0
_MASTER = re.compile(r"local(\[.+\])?$|local-cluster\[.+\]$|spark://.+:\d+|yarn$|k8s://.+|mesos://.+|sc://.+")
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master, such as local[4], spark://host:7077, yarn, k8s://..., sc://host; "
        "all cores of this machine if left out.",
    ),
]


def is_remote(master: str | None) -> bool:
    """Tell whether the master is a Spark Connect server."""
    return master is not None and master.startswith(_CONNECT)


def check_master(master: str | None) -> None:
    """Raise ConfigurationError at once for what Spark would refuse, or wait for, when its Java is there."""
    if master is None:
        return
    if not _MASTER.match(master):
        raise ConfigurationError(
            f"--master {master!r} must be local[4], spark://host:7077, yarn, k8s://..., sc://host or the like"
        )
    if is_remote(master):  # a client of Spark Connect tries for minutes, without a word
        parts = urlsplit(master)
        try:
            socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _PATIENCE_S).close()
        except OSError as error:
            raise ConfigurationError(f"--master {master}: no Spark Connect server can be reached ({error})") from None
