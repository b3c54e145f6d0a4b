"""Real Spark servers on this machine, started from PySpark's own jars: a standalone cluster, a Spark Connect server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

from penstock.spark.runtime.fast_start import java_options
from penstock.spark.runtime.files import made_once
from tests.spark.driver import Process

_PACKAGE = Path(pyspark.__file__).resolve().parent
HOST = "127.0.0.1"
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # for the Java of every driver; the fixture `java` sets it
# The Java that does nothing but put Spark's command lines together.
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_home() -> Path:
    """Returns a SPARK_HOME with all that PySpark brings along, and its Python code in directories instead of zip files.

    From a zip file each Python worker, of which there are several kinds, would compile it anew.
    """

    def make(home: Path) -> None:
        for entry in _PACKAGE.iterdir():
            if entry.name != "python":
                (home / entry.name).symlink_to(entry)
        for archive in (_PACKAGE / "python" / "lib").glob("*.zip"):
            package = "pyspark" if archive.name == "pyspark.zip" else "py4j"
            place = home / "python" / "lib" / archive.name
            place.mkdir(parents=True)
            (place / package).symlink_to(_PACKAGE.parent / package)

    return made_once("test-spark-home", f"{_PACKAGE} {pyspark.__version__}", make)


def fast_start() -> dict[str, str]:
    """Returns the environment in which a Spark that is started as it comes starts fast."""
    return {"SPARK_HOME": str(spark_home()), "SPARK_LAUNCHER_OPTS": _LAUNCHER, "JAVA_TOOL_OPTIONS": java_options()}


def _environment() -> dict[str, str]:
    """Returns settings that would otherwise leak in from the driver of the test process, and those of a fast start."""
    fast = {"SPARK_DAEMON_JAVA_OPTS": _server_options(), "SPARK_LAUNCHER_OPTS": _LAUNCHER}
    return {"SPARK_HOME": str(spark_home()), "SPARK_DAEMON_MEMORY": "256m", **fast}


def _server_options() -> str:
    """Returns the options of a Java that starts fast; what it leaves when it is killed lies where drivers leave theirs."""
    return f"{java_options()} {os.environ.get(SUBMIT_OPTIONS, '')}".strip()


class Standalone:
    """A master and its workers of one core each; `url` is for `session(master=...)` in a Driver."""

    def __init__(self, place: Path, *, workers: int = 2) -> None:
        # What an application should ask for here: an executor of this size fits into a worker.
        self.conf: Mapping[str, str] = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _server_options(),
            "spark.driver.memory": "1g",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
        }
        self._place = place
        self._size = workers
        self._running = ExitStack()
        self.url = ""
        self.workers: list[Process] = []

    def __enter__(self) -> Self:
        master = self._start("master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
        self.url = master.wait_for_line(r"Starting Spark master at (spark://\S+)")[1]
        master.wait_for_line("New state: ALIVE")
        for _ in range(self._size):
            self.add_worker()
        for worker in self.workers:
            worker.wait_for_line("Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def add_worker(self) -> Process:
        """Starts one more worker; killing it kills its executors too."""
        place = self._place / f"worker-{len(self.workers)}"
        place.mkdir()
        size = ("--cores", "1", "--memory", "1g")
        words = ("--host", HOST, "--webui-port", "0", "--work-dir", str(place), *size, self.url)
        self.workers.append(self._start("worker.Worker", *words))
        return self.workers[-1]

    def _start(self, role: str, *words: str) -> Process:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *words]
        return self._running.enter_context(Process(self._started(command), self._place, _environment()))

    def _started(self, command: list[str]) -> list[str]:
        """Returns how a process is started."""
        return command


class ConnectServer:
    """A Spark Connect server; `url` is for `session(master=...)`, here or in a Driver."""

    def __init__(self, place: Path, *, master: str = "local[2,4]", env: Mapping[str, str] | None = None) -> None:
        self._place = place
        self._master = master
        self._env = {**_environment(), "SPARK_DAEMON_MEMORY": "1g", **(env or {})}  # the server is a driver, too
        self._running = ExitStack()
        self.url = ""

    def __enter__(self) -> Self:
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "INFO",  # which is how the server says where it listens
        }
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        service = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = [str(spark_home() / "bin" / "spark-submit"), "--class", service, "--master", self._master, *words]
        self._server = self._running.enter_context(Process(command, self._place, self._env))
        port = self._server.wait_for_line(r"Spark Connect server started at: \S*?:(\d+)")[1]
        self.url = f"sc://{HOST}:{port}"
        return self

    def kill(self) -> None:
        """Kills it with SIGKILL, together with the Python that it has started."""
        self._server.kill()

    def __exit__(self, *_: object) -> None:
        self._running.close()
