"""The archive and the report on YARN, with an environment that the job brings along."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import files
from pathlib import Path

import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.archive import verify
from tests.docs.pages import blocks
from tests.spark.archive.streams import archived
from tests.spark.driver import ROOT
from tests.spark.pipeline.conftest import add_orders
from tests.yarn.conftest import Penstock

PAGE = ROOT / "docs" / "how-to" / "spark-cluster.md"
_PACKAGES = ("redis", "hiredis", "msgspec", "pyarrow", "numpy", "pandas", "python-dateutil", "pytz", "six", "tzdata")


def test_an_archive_is_written_by_executors_that_have_only_what_the_job_brings_along(
    penstock: Penstock, stream_server: EmbeddedServer, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    pack_environment(tmp_path)
    add_orders(stream_redis, 100)
    place = ("--url", stream_server.url)
    env = as_documented()
    assert env["PYSPARK_PYTHON"] == "./environment/bin/python"
    run = ("archive", "run", "--archive", tmp_path / "cold", "--stream", "orders", *place, "--once", "--master", "yarn")
    first = penstock(*run, env=env)
    first.wait_for_line("batch 0: 100 entries")
    first.end()
    assert verify(tmp_path / "cold", rows=True).is_sound
    assert [i for i, _ in archived(tmp_path / "cold")] == [i.decode() for i, _ in stream_redis.xrange("orders")]

    penstock("replay", "--archive", tmp_path / "cold", "--stream", "orders", "--into", "again", *place).end()
    assert stream_redis.xlen("again") == 100
    stream_redis.xtrim("orders", maxlen=40, approximate=False)
    out = tmp_path / "report.html"
    words = ("--archive", tmp_path / "cold", "--output", out, *place, "--master", "yarn")
    report = penstock("report", "--stream", "orders", *words)
    report.wait_for_line("report.html: 100 messages, 0 dead letters")
    report.end()


def as_documented() -> dict[str, str]:
    """Returns the variables that the page tells users to set, but for the place of the cluster's settings."""
    (block,) = [block for block in blocks(PAGE) if "penstock archive run" in block.text]
    words = shlex.split("".join(line for line in block.text.splitlines(keepends=True) if line.startswith("export ")))
    made = dict(word.split("=", 1) for word in words if word != "export")
    del made["HADOOP_CONF_DIR"]
    return made


def pack_environment(place: Path) -> None:
    """Makes `environment`, which has Penstock and what it needs beside Spark, and `environment.tar.gz` of it."""
    home = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in _PACKAGES:
        for file in files(name) or ():
            if ".." not in file.parts and not {"tests", "__pycache__", "include"} & {*file.parts}:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    shutil.copytree(ROOT / "src", packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(place / "environment.tar.gz", "w:gz", compresslevel=0) as archive:
        archive.add(home, ".")
