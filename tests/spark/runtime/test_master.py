"""What the settings of Hadoop say, and what is told of them before Java starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.runtime.master import SparkStopped, check_yarn, default_store, require_running

Write = Callable[..., None]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of settings into the folder that HADOOP_CONF_DIR names."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    def write(file: str, **settings: str) -> None:
        lines = (f"<property><name>{name}</name><value>{text}</value></property>" for name, text in settings.items())
        (tmp_path / file).write_text(f"<configuration>{''.join(lines)}</configuration>")

    return write


def in_a_process_of_its_own(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs Python: where Spark runs already, session() joins it as it is and asks no cluster."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=240, check=False)


def test_yarn_without_settings_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = in_a_process_of_its_own("-c", "from penstock.spark import session; session(master='yarn')")
    assert done.returncode == 1
    assert "ConfigurationError: master yarn: HADOOP_CONF_DIR does not point to the cluster configuration" in done.stderr
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-env.sh").write_text("export HADOOP_CONF_DIR=/etc/hadoop")
    check_yarn({})  # Spark's own script says it


def test_a_resource_manager_that_is_away_is_told_before_java_starts(write: Write, tmp_path: Path) -> None:
    write("yarn-site.xml", **{"yarn.resourcemanager.address": "127.0.0.1:1"})
    file = tmp_path / "orders.toml"
    sink = 'kind = "console"'
    file.write_text(
        f'name = "x"\ncheckpoint = "/c"\n[source]\nurl = "redis://localhost:1"\nstreams = "x"\n[[sink]]\n{sink}\n'
    )
    done = in_a_process_of_its_own("-m", "penstock", "pipeline", "run", str(file), "--master", "yarn")
    assert done.returncode == 2
    assert done.stderr.startswith("starting Spark on yarn ... (waiting for the cluster to allocate resources)\n")
    [line] = done.stderr.splitlines()[1:]
    assert line.startswith("penstock: master yarn: cannot reach the ResourceManager at 127.0.0.1:1 (")
    with socket.create_server(("127.0.0.1", 0)) as manager:
        write("yarn-site.xml", **{"yarn.resourcemanager.address": f"127.0.0.1:{manager.getsockname()[1]}"})
        check_yarn({})


def test_an_address_is_what_hadoop_makes_of_its_settings(write: Write) -> None:
    with pytest.raises(ConfigurationError, match=r"at 0\.0\.0\.0:8032"):
        check_yarn({})
    name = "yarn.resourcemanager.hostname"
    write("yarn-site.xml", **{name: "nowhere.invalid"})
    with pytest.raises(ConfigurationError, match=r"at nowhere\.invalid:8032"):
        check_yarn({})
    with pytest.raises(ConfigurationError, match=r"at elsewhere\.invalid:8032"):
        check_yarn({f"spark.hadoop.{name}": "elsewhere.invalid"})
    write("yarn-site.xml", **{"yarn.resourcemanager.ha.enabled": "true"})
    check_yarn({})  # which of several is at work, Hadoop finds out


def test_plain_paths_lie_where_the_settings_say(write: Write) -> None:
    assert default_store({}) is None
    write("core-site.xml", **{"fs.defaultFS": "hdfs://names:9000"})
    assert default_store({}) == "hdfs://names:9000"
    assert default_store({"spark.hadoop.fs.defaultFS": "file:///"}) is None


def java(*, is_stopped: bool) -> Any:
    return SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: is_stopped))


def gone() -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize("context", [None, java(is_stopped=True), SimpleNamespace(sc=gone)])
def test_a_session_that_was_stopped_cannot_be_used(context: Any) -> None:
    with pytest.raises(SparkStopped, match="start another one"):
        require_running(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context)))  # type: ignore[arg-type]


def test_a_session_that_runs_can_be_used() -> None:
    require_running(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java(is_stopped=False))))  # type: ignore[arg-type]
