from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_shared_session_computes(spark: SparkSession) -> None:
    assert spark.range(10).selectExpr("sum(id)").first()[0] == 45
