"""Where a Spark session runs, as far as it is known before Java starts: masters, and the settings of Hadoop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from penstock.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_SCHEME = "sc://"
_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_OF_SPARK = "spark.hadoop."
_MANAGER = "yarn.resourcemanager."
_PORT = 8032
_TIMEOUT_S = 10.0
_HERE = "file:"


def is_local(master: str | None) -> bool:
    """Returns whether driver and executors are one process on this machine."""
    return master is not None and (master == "local" or master.startswith("local["))


def is_connect(spark: SparkSession) -> bool:
    """Returns whether the session is a client of a Spark Connect server. No import: that would need grpcio."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class SparkStopped(PenstockError):
    """A session is used after it was stopped."""


def require_running(spark: SparkSession) -> None:
    """Raise SparkStopped if the session was stopped, by its user or because its cluster ended the application."""
    if _is_stopped(spark):
        raise SparkStopped(
            "the Spark session was stopped, by stop() or by its cluster: start another one, with "
            "penstock.spark.session() after stop()"
        )


def _is_stopped(session: Any) -> bool:
    if is_connect(session):
        return bool(session.is_stopped)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    java = session.sparkContext._jsc  # noqa: SLF001 - what the cluster stopped, only Java knows
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, OSError):  # Java itself is gone
        return True


def enough_tasks(spark: SparkSession) -> int:
    """Return a number of tasks that keeps all cores busy to the end, although one of them takes longer."""
    if is_connect(spark):  # it does not reveal the number of cores
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return 4 * spark.sparkContext.defaultParallelism


def check_yarn(conf: Mapping[str, object]) -> None:
    """Raise ConfigurationError if there can be no session on YARN: Spark itself tries for a quarter of an hour."""
    if _may_be_said_elsewhere():
        return
    if not list(_folders()):
        raise ConfigurationError(
            "master yarn: HADOOP_CONF_DIR does not point to the cluster configuration: set it to the folder "
            "with its yarn-site.xml and core-site.xml"
        )
    address = _address(conf)
    if address is None:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"master yarn: cannot reach the ResourceManager at {address} ({error}), the address from "
            f"yarn-site.xml in {' and '.join(map(str, _folders()))} or its default"
        ) from None


def default_store(conf: Mapping[str, object]) -> str | None:
    """Return the address of the file system that plain paths are in; None if it is this machine's."""
    found = _setting("core-site.xml", "fs.defaultFS", conf)
    return None if found is None or found.startswith(_HERE) else found


def _may_be_said_elsewhere() -> bool:
    """Return whether Spark's own script sets variables before it starts Java."""
    homes = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in [os.environ.get("SPARK_HOME")] if home)]
    return any(Path(home, "spark-env.sh").exists() for home in homes if home)


def _address(conf: Mapping[str, object]) -> str | None:
    """Return the address of the one ResourceManager; None if it is not that simple."""
    if _yarn("ha.enabled", conf) == "true":
        return None
    host = _yarn("hostname", conf) or "0.0.0.0"  # noqa: S104 - Hadoop's default
    address = _yarn("address", conf) or f"{host}:{_PORT}"
    address = address.replace("${yarn.resourcemanager.hostname}", host)
    return None if "${" in address else address


def _yarn(name: str, conf: Mapping[str, object]) -> str | None:
    return _setting("yarn-site.xml", f"{_MANAGER}{name}", conf)


def _setting(file: str, name: str, conf: Mapping[str, object]) -> str | None:
    if f"{_OF_SPARK}{name}" in conf:
        return str(conf[f"{_OF_SPARK}{name}"])
    for folder in _folders():
        try:
            tree = ET.parse(folder / file)  # noqa: S314 - the user's own, which Java reads next
        except (OSError, ET.ParseError):
            continue
        for property_ in tree.iter("property"):
            if (property_.findtext("name") or "").strip() == name:
                return (property_.findtext("value") or "").strip()
    return None


def _folders() -> Iterator[Path]:
    for name in _FOLDERS:
        if os.environ.get(name):
            yield Path(os.environ[name])
