"""The Python blocks of the pages about Spark run, in the session that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.redis.embedded import EmbeddedServer
from tests.docs.pages import PAGES, name
from tests.docs.test_code_blocks import check_page, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Their code limits batches, or runs the archive.
_LIMITED = {"docs/how-to/archive.md", "docs/how-to/spark-read.md", "docs/tutorial/from-queue-to-lakehouse.md"}
_MARKED = [
    pytest.param(page, marks=[pytest.mark.needs_limits] if name(page) in _LIMITED else [])
    for page in PAGES
    if needs_spark(page)
]


@pytest.mark.rotates
@pytest.mark.parametrize("page", _MARKED, ids=name)
def test_the_code_of_the_page_runs(page: Path, spark: SparkSession, stream_server: EmbeddedServer) -> None:
    check_page(page, stream_server)
