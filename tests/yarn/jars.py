"""Jars from Maven, fetched as Spark fetches the packages of a job, and kept beside those of tests/lakehouse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.driver import ROOT
from tests.yarn.versions import EXCLUDED, PACKAGES

_IVY = ROOT / ".venvs" / "ivy"
_FETCH = """
import sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
launch_gateway(SparkConf(loadDefaults=False).setAll([word.split("=", 1) for word in sys.argv[1:]]))
"""


def jars() -> list[Path]:
    """Returns the jars of Hadoop's servers; fetches them if they are not there."""
    wanted = [_IVY / "jars" / "{}_{}-{}.jar".format(*package.split(":")) for package in PACKAGES]
    if not all(jar.is_file() for jar in wanted):
        _fetch()
    # Ivy keeps what belongs to them beside them.
    return [*wanted, *(_IVY / "jars").glob("org.bouncycastle_bcutil-*.jar")]


def _fetch() -> None:
    words = {
        "spark.master": "local[1]",
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.excludes": ",".join(EXCLUDED),
        "spark.jars.ivy": str(_IVY),
    }
    if mirror := os.environ.get("PENSTOCK_LAKEHOUSE_REPOSITORY"):
        words["spark.jars.repositories"] = mirror
    said = [f"{name}={value}" for name, value in words.items()]
    done = subprocess.run([sys.executable, "-c", _FETCH, *said], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"the jars of Hadoop cannot be had: {done.stderr[-4000:]}")
