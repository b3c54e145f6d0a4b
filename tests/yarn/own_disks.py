"""Pipelines and an archive whose files lie in a folder that is another disk for executors; run by a driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.settings import ResultBackendSettings
from penstock.spark import session
from penstock.spark.archive import ArchiveRun
from penstock.spark.pipeline import Delta, Iceberg, Parquet, Pipeline, Results, Source, Sql
from penstock.spark.reprocess import Reprocess, Work
from penstock.spark.reprocess.run import SelectedDeadLetters
from penstock.spark.runtime.errors import one_line
from tests.spark.pipeline.conftest import iceberg_catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipelines(place: str, url: str) -> Iterator[Pipeline]:
    """Yields a pipeline for each way of keeping files."""
    own = f"{place}/own"
    yield pipeline("parquet", url, f"{place}/p", Parquet(f"{own}/table"))
    yield pipeline("delta", url, f"{place}/d", Delta(f"{own}/delta"))
    yield pipeline("iceberg", url, f"{place}/i", Iceberg("shop.orders", catalogue_of(Path(place))))
    yield pipeline("staging", url, f"{own}/s", Parquet(f"{place}/staged"), Parquet(f"{place}/copy", name="copy"))
    yield pipeline("results", url, f"{place}/r", Results("n", "order", "fs", options={"root": f"{own}/results"}))
    yield pipeline("state", url, f"{own}/c", Parquet(f"{place}/once"), dedup=("n",), watermark="1h")


def catalogue_of(place: Path) -> dict[str, str]:
    """Returns the catalogue of the sink of Iceberg."""
    return {**iceberg_catalogue(place), "warehouse": f"file://{place}/own/warehouse"}


def pipeline(name: str, url: str, checkpoint: str, *sinks: Any, **given: Any) -> Pipeline:
    source = Source(url=url, streams=("orders",), schema="n bigint")
    return Pipeline(
        name=name, source=source, steps=(Sql("SELECT n FROM input"),), sinks=sinks, checkpoint=checkpoint, **given
    )


def run(tell: Callable[[str], None], master: str, conf: str, place: str, url: str) -> None:
    """Runs everything, and tells what became of each."""
    spark = session("own disks", master, short=True, conf=json.loads(conf))
    for each in pipelines(place, url):
        try:
            each.run(spark)
            tell(json.dumps({each.name: "done"}))
        except PenstockError as error:
            tell(json.dumps({each.name: str(error)}))
    tell(json.dumps({"again": reprocessed(spark, f"{place}/own/again", url)}))
    tell(json.dumps({"archive": archived(spark, f"{place}/own/cold", url)}))
    tell("over")
    spark.stop()


def reprocessed(spark: SparkSession, root: str, url: str) -> str:
    from pyspark.errors import PySparkException

    work = Work("tests.spark.reprocess.handlers:doubled", ResultBackendSettings("fs", root=root))
    try:
        done = Reprocess(SelectedDeadLetters({"url": url}, "orders", None, None), work, purge=True).run(spark)
    except PySparkException as error:
        return one_line(error)
    return "done" if done.purged else "nothing purged"


def archived(spark: SparkSession, root: str | Path, url: str) -> str:
    from pyspark.errors import StreamingQueryException

    try:
        ArchiveRun(root, "orders", {"url": url}).start(spark, once=True).awaitTermination()
    except StreamingQueryException as error:
        return one_line(error)
    return "done"
