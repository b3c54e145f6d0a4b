from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.spark.clusters import Standalone
from tests.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STANDALONE = """
import json, sys
from penstock.spark import session
spark = session(master=sys.argv[1], short=True, conf=json.loads(sys.argv[2]))
print("sum", spark.range(0, 10, 1, 2).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id)").first()[0])
spark.stop()
"""


def test_a_driver_computes_on_a_real_cluster(start_driver: Callable[..., Driver], standalone: Standalone) -> None:
    driver = start_driver(_STANDALONE, standalone.url, json.dumps(dict(standalone.conf)))
    driver.wait_for_line("^sum 45$")
    driver.end()


def test_a_client_computes_through_spark_connect(connect: SparkSession) -> None:
    assert connect.range(10).selectExpr("sum(id)").first()[0] == 45
