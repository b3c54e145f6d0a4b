"""Has Spark read what the workers left, and compares the counts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec

from penstock import PenstockError, StreamClient
from penstock.cli.demo.orders import BY_SPARK, STREAM

_LAST_LINES = 12


@dataclass(frozen=True)
class SparkCount:
    """The same orders, counted in four places."""

    in_redis: int
    parquet: int
    ids: int
    back_in_redis: int
    seconds: float
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether every place has them all, each once."""
        return self.in_redis == self.parquet == self.ids == self.back_in_redis


class SparkFailed(PenstockError):
    """The Spark step did not end well."""


def is_installed() -> bool:
    """Tell whether there is a PySpark to show."""
    return find_spec("pyspark") is not None


async def count(client: StreamClient, url: str, show: Callable[[str], None]) -> SparkCount:
    """Run the job in a process of its own, which ends with this one, and count in Redis what it read and wrote."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-spark-") as folder:
        found = json.loads(await _run_job(url, folder, show))
    return SparkCount(
        in_redis=int(await client.call(STREAM, "XLEN", STREAM)),
        back_in_redis=int(await client.call(BY_SPARK, "XLEN", BY_SPARK)),
        seconds=round(time.monotonic() - started_s, 1),
        **found,
    )


async def _run_job(url: str, folder: str, show: Callable[[str], None]) -> str:
    job = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock.cli.demo.spark_job", url, folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": folder},
    )  # fmt: skip
    assert job.stdout is not None
    assert job.stderr is not None
    stderr, last = asyncio.ensure_future(job.stderr.read()), ""
    try:
        async for line in job.stdout:
            last = line.decode().strip()
            if not last.startswith("{"):  # the result is JSON, the rest is for the audience
                show(last)
        await job.wait()  # not killed before it has ended by itself
    finally:
        with suppress(ProcessLookupError):  # Java is in the same group; its Python workers end with it
            os.killpg(job.pid, signal.SIGKILL)
        await asyncio.wait([stderr, asyncio.ensure_future(job.wait())])
    if job.returncode:
        raise SparkFailed(f"the Spark step failed:\n{_last_lines(stderr.result().decode(errors='replace'))}")
    return last


def _last_lines(stderr: str) -> str:
    # Java's stack is long, and what happened stands before it.
    lines = [line for line in stderr.splitlines() if not line.startswith(("\tat ", "\t... "))]
    return "\n".join(lines[-_LAST_LINES:])
