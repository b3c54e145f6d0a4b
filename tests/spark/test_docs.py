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


@pytest.mark.parametrize("page", [page for page in PAGES if needs_spark(page)], ids=name)
def test_the_code_of_the_page_runs(page: Path, spark: SparkSession, stream_server: EmbeddedServer) -> None:
    check_page(page, stream_server)
