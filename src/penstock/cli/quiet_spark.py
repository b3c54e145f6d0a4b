"""The Spark session of commands that tell of their progress themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bad_input import bad_input
from penstock.cli.spark_master import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What ends a command is told in a line of ours, where Java would say it in hundreds.
QUIET_CONF = {
    "spark.log.level": "FATAL",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Else a condition with a query in it makes a folder where the command is run.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
}


def quiet_session(name: str, master: str | None) -> SparkSession:
    """Start a session on the master, or on all cores of this machine; end with code 2 for a master that is none."""
    with bad_input():
        check_master(master, needs_classic=True)
    from penstock.spark.master import is_local
    from penstock.spark.session import session

    return session(name, master, short=master is None or is_local(master), conf=QUIET_CONF)
