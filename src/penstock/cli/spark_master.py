"""`--master`: where the commands that need Spark compute."""

from __future__ import annotations

import re
import socket
import warnings
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT, _CONNECT_PORT, _PATIENCE_S = "sc://", 15002, 10.0
# Half a minute. Spark's client would try for ten; but a server that dies has forgotten its sessions.
_TRIES, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 10, 200, 5_000
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


def check_master(master: str | None, *, needs_classic: bool = False) -> None:
    """Raise ConfigurationError at once for what Spark would refuse, or wait for, when its Java is there."""
    if master is None:
        return
    if not _MASTER.match(master):
        raise ConfigurationError(
            f"--master {master!r} must be local[4], spark://host:7077, yarn, k8s://..., sc://host or the like"
        )
    if not is_remote(master):
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


def notice_a_dead_server(spark: SparkSession) -> None:
    """Let a client of Spark Connect give up after half a minute without its server, and tell it in a line of ours."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    patience = DefaultPolicy(
        max_retries=_TRIES, initial_backoff=_FIRST_PAUSE_MS, max_backoff=_LONGEST_PAUSE_MS, backoff_multiplier=2
    )
    _client(spark).set_retry_policies([patience])


def leave(spark: SparkSession) -> None:
    """End a client of Spark Connect, whose server may be gone."""
    _client(spark).set_retry_policies([])
    spark.stop()


def _client(spark: SparkSession) -> Any:
    return spark.client  # sessions of Connect have one
