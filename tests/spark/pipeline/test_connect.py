"""A pipeline through a real Spark Connect server, as a shell runs it: what is true of a driver is true there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import redis
from deltalake import DeltaTable

from penstock.redis.embedded import EmbeddedServer
from tests.spark.clusters import ConnectServer
from tests.spark.driver import PYTHONPATH, ROOT, Process
from tests.spark.limits import HAS_LIMITS
from tests.spark.pipeline.conftest import add_orders, dead_letters

PENSTOCK = [sys.executable, "-m", "penstock", "pipeline"]
SHOP = "tests.spark.pipeline.shop"
LIMIT = "max_rows_per_batch = 10" if HAS_LIMITS else ""
TEXT = """\
name = "orders"
checkpoint = "{place}/checkpoint"
dedup = "message_id"
watermark = "1h"
[source]
url = "{url}"
streams = "orders"
schema = "n bigint"
valid = "n <> 4"
{limit}
[[step]]
sql = "SELECT *, n * 2 AS twice FROM input"
[[step]]
sql = "SELECT stream, id, timestamp, data, n, twice + 1 AS more FROM input"
[[step]]
handler = "{shop}:score"
output = "score double"
[[step]]
sql = "SELECT n, more, score FROM input"
[[sink]]
kind = "parquet"
path = "{place}/table"
[[sink]]
kind = "delta"
path = "{place}/delta"
"""


@pytest.fixture
def file(stream_server: EmbeddedServer, tmp_path: Path) -> Path:
    made = tmp_path / "orders.toml"
    made.write_text(TEXT.format(place=tmp_path, url=stream_server.url, shop=SHOP, limit=LIMIT))
    return made


@pytest.fixture
def penstock(connect_server: ConnectServer, tmp_path: Path) -> Callable[..., Process]:
    """Starts a command that is a client of the server."""

    def start(*words: object) -> Process:
        command = [*PENSTOCK, *map(str, words), "--master", connect_server.url]
        return Process(command, tmp_path, {"PYTHONPATH": PYTHONPATH})

    return start


def numbers(place: Path) -> tuple[list[int], list[int]]:
    """Returns what is in the Parquet table and in the Delta table."""
    found = [row["n"] for row in pq.read_table(place / "table").to_pylist()]
    return sorted(found), sorted(DeltaTable(place / "delta").to_pyarrow_table()["n"].to_pylist())


def good(count: int) -> list[int]:
    return [n for n in range(count) if n != 4 and n % 10 not in (7, 8)]


def bad(count: int) -> list[str]:
    left = set(range(count)) - set(good(count))
    return sorted([*(json.dumps({"n": n}) for n in left), "no json"])


@pytest.mark.slow
def test_what_was_read_is_in_all_sinks_once_and_what_is_bad_in_the_dead_letters(
    penstock: Callable[..., Process], file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 25)
    stream_redis.xadd("orders", {"data": "no json"})
    with penstock("validate", file) as process:
        assert process.end()[-1] == f"{file}: pipeline 'orders' is valid"
    with penstock("run", file) as process:
        assert re.fullmatch(
            r"orders: done after \d batches, 26 rows", process.end()[-1]
        )  # Spark adds some for watermarks
    assert numbers(tmp_path) == (good(25), good(25))
    add_orders(stream_redis, 5, first=25)
    with penstock("run", file) as process:
        assert process.end()[-1].endswith(" batches, 5 rows")
    assert numbers(tmp_path) == (good(30), good(30))
    assert sorted(letter["data"] for letter in dead_letters(stream_redis)) == bad(30)


@pytest.mark.slow
def test_it_stops_between_batches_and_a_killed_client_costs_nothing(
    penstock: Callable[..., Process], file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    with penstock("run", file, "--continuous") as process:
        process.wait_for_line("batch 0: 10 rows")
        os.kill(process.pid, signal.SIGTERM)
        assert re.fullmatch(r"orders: stopped after \d batches, 10 rows", process.end()[-1])
    add_orders(stream_redis, 20)  # the first ten for the second time
    with penstock("run", file, "--continuous") as process:
        process.wait_for_line(r"batch \d: [12]0 rows")
        process.kill()  # its query goes on at the server, and ends when another takes the checkpoint
    add_orders(stream_redis, 10, first=20)
    with penstock("run", file) as process:
        process.end()
    assert numbers(tmp_path) == (good(30), good(30))


@pytest.mark.slow
def test_a_killed_server_costs_nothing(
    java: Path, file: Path, stream_redis: redis.Redis, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    add_orders(stream_redis, 30)
    env = {"PYTHONPATH": PYTHONPATH}
    with (
        ConnectServer(tmp_path_factory.mktemp("killed"), env=env) as server,
        Process([*PENSTOCK, "run", str(file), "--continuous", "--master", server.url], tmp_path, env) as process,
    ):
        process.wait_for_line(r"batch 0: \d+ rows")
        server.kill()
        process.wait_for_line(
            r"^penstock: pipeline 'orders' failed: the Spark Connect server does not respond \(.+\)\. "
        )
    with (
        ConnectServer(tmp_path_factory.mktemp("next"), env=env) as server,
        Process([*PENSTOCK, "run", str(file), "--master", server.url], tmp_path, env) as process,
    ):
        process.end()
    assert numbers(tmp_path) == (good(30), good(30))


@pytest.mark.slow
def test_what_cannot_run_there_is_told_and_nothing_is_written(
    connect_server: ConnectServer, file: Path, stream_redis: redis.Redis, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    sound = file.read_text()
    elsewhere = sound.replace(f"{tmp_path}/table", "s3a://bucket/table").replace("/delta", '/delta"\nlibrary = "spark')
    for text, faults in (
        (sound.replace("twice + 1", "thrice + 1"), ["step 2 (sql): [UNRESOLVED_COLUMN"]),
        (
            elsewhere,
            ["sink 1 (parquet): cannot reach s3a://bucket/table: ", "sink 2 (delta): this sink needs the driver's JVM"],
        ),
    ):
        file.write_text(text)
        command = [*PENSTOCK, "run", str(file), "--master", connect_server.url]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        told = [line for line in ended.stderr.splitlines() if line.startswith("penstock: ")]
        assert (ended.returncode, len(told)) == (2, len(faults)), ended.stderr
        for line, fault in zip(told, faults, strict=True):
            assert fault in line
    assert [each for each in tmp_path.iterdir() if each.is_dir()] == []
