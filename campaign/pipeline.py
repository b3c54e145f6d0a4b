"""A driver process: `python -m campaign.pipeline '{"url": ..., "stream": ..., "table": ...}'` runs a pipeline."""

from __future__ import annotations

import json
import logging
import sys

from campaign.children import end_with_the_parent
from campaign.journal import Journal
from penstock.spark import session
from penstock.spark.pipeline import Parquet, Pipeline, Source, Sql


def main() -> None:
    """Write the numbers of the messages into a table, until a signal or (`once`) until all are read."""
    end_with_the_parent()
    logging.basicConfig(level=logging.WARNING)
    job = json.loads(sys.argv[1])
    pipeline = Pipeline(
        name="campaign",
        source=Source(url=job["url"], streams=(job["stream"],), schema="n bigint NOT NULL"),
        steps=(Sql("SELECT n FROM input"),),
        sinks=(Parquet(job["table"]),),
        checkpoint=job["table"] + "-checkpoint",
        trigger="1s",
    )
    spark = session()
    Journal(job["journal"]).note("started", "driver")
    pipeline.run(spark, once=job.get("once", False))


if __name__ == "__main__":
    main()
