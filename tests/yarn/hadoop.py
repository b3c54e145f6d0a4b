"""A real Hadoop on this machine: ResourceManager, NodeManagers, NameNode and DataNode, each a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

import pyspark

from penstock.redis.embedded import free_port
from tests.spark.driver import Process
from tests.yarn.jars import jars

HOST = "127.0.0.1"
SPARK_JARS = Path(pyspark.__file__).resolve().parent / "jars"
_JAVA = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


class Hadoop:
    """YARN with NodeManagers of two executors each, and an HDFS; `client` is what a driver needs in its environment."""

    def __init__(self, place: Path, java: Path) -> None:
        self._place, self._java = place, java
        self._conf = place / "conf"
        self._running = ExitStack()
        self.hdfs = f"hdfs://{HOST}:{free_port()}"
        self.nodes: list[Process] = []

    @property
    def client(self) -> dict[str, str]:
        """The environment of a driver on this cluster: where its settings are, and those of Spark."""
        return {"HADOOP_CONF_DIR": str(self._conf), "SPARK_CONF_DIR": str(self._conf)}

    def __enter__(self) -> Self:
        self._conf.mkdir()
        _write(self._conf / "core-site.xml", _core(self.hdfs))
        _write(self._conf / "hdfs-site.xml", _hdfs())
        _write(self._conf / "yarn-site.xml", _yarn())
        (self._conf / "log4j2.properties").write_text(_LOGGING)
        (self._conf / "spark-defaults.conf").write_text(_spark())
        format_ = self._start("format", _NAME_NODE, "-format", "-nonInteractive")
        manager = self._start("manager", _RESOURCE_MANAGER)
        format_.end()
        names = self._start("names", _NAME_NODE)
        manager.wait_for_line("Transitioned to active state")
        self.nodes = [self._start(f"node-{n}", _NODE_MANAGER) for n in range(2)]
        names.wait_for_line("NameNode RPC up at")
        data = self._start("data", _DATA_NODE)
        for node in self.nodes:
            node.wait_for_line("Registered with ResourceManager")
        data.wait_for_line("Successfully sent block report")
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        for pid in self.containers():  # each is a session of its own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def fetch(self, path: str, target: Path) -> None:
        """Copies a folder of HDFS to a disk."""
        shell = "org.apache.hadoop.fs.FsShell"
        self._running.enter_context(Process(self._command(shell, "-get", path, str(target)), self._place)).end()

    def executors(self) -> list[int]:
        """Returns the Javas that run tasks."""
        return self.containers("YarnCoarseGrainedExecutorBackend", "java")

    def containers(self, word: str = "", program: str = "") -> list[int]:
        """Returns processes that work in the directories of the nodes."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                is_ours = (entry / "cwd").readlink().is_relative_to(self._place)
                is_wanted = word.encode() in (entry / "cmdline").read_bytes()
                if is_ours and is_wanted and (entry / "exe").readlink().name.startswith(program):
                    found.append(int(entry.name))
        return found

    def _start(self, name: str, role: str, *words: str) -> Process:
        place = self._place / name
        place.mkdir()
        own = f"-Dplace={self._place if role in (_NAME_NODE, _DATA_NODE) else place}"
        return self._running.enter_context(
            Process(self._command(own, role, *words), place, {"JAVA_HOME": str(self._java)})
        )

    def _command(self, *words: str) -> list[str]:
        path = ":".join([str(self._conf), *map(str, jars()), f"{SPARK_JARS}/*"])
        return [str(self._java / "bin" / "java"), *_JAVA, "-cp", path, *words]


def _write(file: Path, settings: Mapping[str, str]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    ]
    file.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))


def _core(hdfs: str) -> dict[str, str]:
    return {"fs.defaultFS": hdfs, "hadoop.tmp.dir": "${place}/tmp"}


def _hdfs() -> dict[str, str]:
    return {
        "dfs.namenode.name.dir": "${place}/hdfs-names",
        "dfs.datanode.data.dir": "${place}/hdfs-data",
        "dfs.namenode.http-address": f"{HOST}:0",
        "dfs.datanode.address": f"{HOST}:0",
        "dfs.datanode.http.address": f"{HOST}:0",
        "dfs.datanode.ipc.address": f"{HOST}:0",
        "dfs.replication": "1",
        "dfs.namenode.safemode.extension": "0",
    }


def _yarn() -> dict[str, str]:
    made = {f"yarn.resourcemanager.{name}address": f"{HOST}:{free_port()}" for name in _ADDRESSES}
    node = {
        f"yarn.nodemanager.{name}address": f"{HOST}:0" for name in ("", "localizer.", "webapp.", "collector-service.")
    }
    return {
        **made,
        **node,
        "yarn.resourcemanager.webapp.address": f"{HOST}:0",
        "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.nodemanager.resource.memory-mb": "3072",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.nodemanager.local-dirs": "${place}/local",
        "yarn.nodemanager.log-dirs": "${place}/logs",
        # Memory that is only reserved, and the disk of a developer that is nearly full, are no reason to end.
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
    }


_ADDRESSES = ("", "scheduler.", "resource-tracker.", "admin.")


def _spark() -> str:
    """Returns what the administrator of a cluster has written for all its jobs."""
    settings = {
        "spark.yarn.jars": f"local:{SPARK_JARS}/*",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.yarn.am.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())
