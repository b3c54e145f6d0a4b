"""The Spark sessions of commands: on which master, how quiet, and what is shown of a query that failed."""

from __future__ import annotations

import re
import socket
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.cli.java_output import silent_start
from penstock.cli.shown import say
from penstock.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_PENSTOCK = re.compile(r"penstock(?:\.\w+)*\.(\w+): (.+)")
_COMMON_CONF = {"spark.sql.session.timeZone": "UTC"}
# An error that ends a command is printed in one line, where Java prints hundreds.
_QUIET = {
    "spark.log.level": "FATAL",
    "spark.ui.showConsoleProgress": "false",
    # Else a condition with a query in it makes a folder where the command is run.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
}
_CONNECT, _CONNECT_PORT, _PATIENCE_S = "sc://", 15002, 10.0
# Half a minute. Spark's client would try for ten; but a server that dies has forgotten its sessions.
_TRIES, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 10, 200, 5_000
_MASTER = re.compile(r"local(\[.+\])?$|local-cluster\[.+\]$|spark://.+:\d+|yarn$|k8s://.+|mesos://.+|sc://.+")
Master = Annotated[
    str | None,
    typer.Option(
        help=(
            "The Spark master, such as local[4], spark://host:7077, yarn, k8s://... or sc://host (default: all "
            "cores of this machine)."
        ),
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
            f"--master {master!r} must be local[4], spark://host:7077, yarn, k8s://..., sc://host or similar"
        )
    if not is_remote(master):
        return
    if needs_classic:
        raise ConfigurationError(
            f"--master {master}: this command does not support Spark Connect; use local[4], spark://host:7077, "
            "yarn or k8s://..."
        )
    parts = urlsplit(master)  # a client of Spark Connect retries for minutes without printing anything
    try:
        socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _PATIENCE_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--master {master}: cannot reach a Spark Connect server ({error})") from None


def detect_dead_server(spark: SparkSession) -> None:
    """Let a client of Spark Connect give up after half a minute without its server, with a one-line error."""
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


def quiet_session(
    name: str, master: str | None = None, *, is_long: bool = False, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session on the master, or on all cores of this machine; a long one computes faster and starts slower."""
    from penstock.spark.runtime.master import is_local
    from penstock.spark.sessions import session

    given = _COMMON_CONF | dict(conf or {})
    with started(master):
        if is_remote(master):
            spark = session(name, master, conf=given)
            detect_dead_server(spark)
            return spark
        is_this_machine = master is None or is_local(master)
        return session(name, master, short=is_this_machine and not is_long, conf=_QUIET | given)


@contextmanager
def started(master: str | None, *, shows_output: bool = False) -> Iterator[None]:
    """Say what is waited for while the body starts Spark, whose own words are kept back unless they are wanted."""
    if is_remote(master):
        say(f"connecting to Spark at {master} ...")
        yield
        return
    where = master or "this machine"
    is_elsewhere = not where.startswith(("local", "this"))
    say(f"starting Spark on {where} ..." + (" (waiting for the cluster to allocate resources)" if is_elsewhere else ""))
    with nullcontext() if shows_output else silent_start():
        yield


class QueryFailed(PenstockError):
    """A Spark query ended with an error; `is_transient` means that its cause may go away by itself."""

    def __init__(self, text: str, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.is_transient = is_transient


def query_failed(error: BaseException) -> QueryFailed:
    """Return an error with our own words out of the long text that Spark wraps them in."""
    from penstock.spark.runtime.errors import is_transient_failure, one_line

    messages = [match[2] for match in _OF_PENSTOCK.finditer(str(error))]
    text = messages[-1].strip() if messages else one_line(error)
    return QueryFailed(text, is_transient=is_transient_failure(str(error)))
