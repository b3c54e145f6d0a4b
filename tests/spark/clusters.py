"""Real Spark servers on this machine, started from PySpark's own jars: a standalone cluster, a Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

from tests.spark.driver import Process

HOME = Path(pyspark.__file__).resolve().parent
HOST = "127.0.0.1"
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The driver's own settings would otherwise leak in through the environment of the test process.
_ENV = {"SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": FAST}


class Standalone:
    """A master and its workers of one core each; `url` is for `session(master=...)` in a Driver."""

    # What an application should ask for here: an executor of this size fits into a worker.
    conf: Mapping[str, str] = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": FAST,
        "spark.driver.memory": "1g",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
    }

    def __init__(self, place: Path, *, workers: int = 2) -> None:
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
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *words]
        return self._running.enter_context(Process(command, self._place, _ENV))


class ConnectServer:
    """A Spark Connect server; `url` is for `session(master=...)`, here or in a Driver."""

    def __init__(self, place: Path, *, master: str = "local[2,4]", env: Mapping[str, str] | None = None) -> None:
        self._place = place
        self._master = master
        self._env = {**_ENV, "SPARK_DAEMON_MEMORY": "1g", **(env or {})}  # the server is a driver, too
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
        command = [str(HOME / "bin" / "spark-submit"), "--class", service, "--master", self._master, *words]
        server = self._running.enter_context(Process(command, self._place, self._env))
        port = server.wait_for_line(r"Spark Connect server started at: \S*?:(\d+)")[1]
        self.url = f"sc://{HOST}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
