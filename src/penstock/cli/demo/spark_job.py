"""The Spark step of the demo, a process of its own: the orders as a table, into Parquet, and back into a stream."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.cli.demo.orders import BY_SPARK, STREAM
from penstock.spark import session

_PAYLOAD = "`order` bigint, kind string, work_ms double"


def run(url: str, folder: Path) -> dict[str, object]:
    """Read, aggregate, write and write back; return the counts."""
    spark = session("penstock demo", "local[2]", short=True, conf={"spark.log.level": "OFF"})
    try:
        source = spark.read.format("redis_streams").option("url", url).option("streams", STREAM)
        orders = source.option("payload", "json").option("payloadSchema", _PAYLOAD).load()
        wanted = orders.select("id", "order", "kind", "work_ms", "_corrupt_record")
        report(f"Spark {spark.version} is running; reading the orders into Parquet")
        place = str(folder / "orders.parquet")
        wanted.write.parquet(place)
        kept = spark.read.parquet(place)
        kinds = {row["kind"] or "not JSON": row["count"] for row in kept.groupBy("kind").count().collect()}
        report(f"{sum(kinds.values()):,} orders are in Parquet; writing them back into a stream")
        back = kept.select("order", "kind", "work_ms").write.format("redis_streams").mode("append")
        back.option("url", url).option("stream", BY_SPARK).option("writeId", "demo").save()
        return {"parquet": sum(kinds.values()), "kinds": kinds, "ids": kept.select("id").distinct().count()}
    finally:
        spark.stop()


def report(text: str) -> None:
    """Tell the demo how it goes."""
    print(text, flush=True)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))), flush=True)
