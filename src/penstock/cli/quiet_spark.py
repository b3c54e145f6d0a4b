"""The Spark session of commands that tell of their progress themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bad_input import bad_input
from penstock.cli.spark_master import is_remote, notice_a_dead_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAME_EVERYWHERE = {"spark.sql.session.timeZone": "UTC"}
# What ends a command is told in a line of ours, where Java would say it in hundreds.
_QUIET = {
    "spark.log.level": "FATAL",
    "spark.ui.showConsoleProgress": "false",
    # Else a condition with a query in it makes a folder where the command is run.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
}


def quiet_session(name: str, master: str | None = None, *, is_long: bool = False) -> SparkSession:
    """Start a session on the master, or on all cores of this machine; a long one computes faster and starts slower."""
    from penstock.spark.master import is_local
    from penstock.spark.session import session

    if is_remote(master):
        spark = session(name, master, conf=_SAME_EVERYWHERE)
        notice_a_dead_server(spark)
        return spark
    is_here = master is None or is_local(master)
    with bad_input():
        return session(name, master, short=is_here and not is_long, conf=_SAME_EVERYWHERE | _QUIET)
