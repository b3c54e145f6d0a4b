"""The measurements: each returns figures of one run, ratios are made of figures of the same run."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.process_stat import usage
from bench.server import Server
from bench.spark.data import PAYLOAD_DDL

_PAGE = 1_000


@dataclass(frozen=True)
class Cost:
    """Wall-clock and processor time of something done to so many rows."""

    rows: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.rows * 1e6


class Subject:
    """A server, a session, and how to time work on both."""

    def __init__(self, server: Server, spark: SparkSession) -> None:
        self.server, self.spark = server, spark
        self.url = f"redis://127.0.0.1:{server.port}"

    def timed(self, rows: int, work: Callable[[], object]) -> Cost:
        """Returns what the work costs in all processes: this one with Java and its Python workers, and the server."""
        before, started = self._cpu_s(), time.perf_counter()
        work()
        return Cost(rows, time.perf_counter() - started, self._cpu_s() - before)

    def _cpu_s(self) -> float:
        return usage(os.getpid()).cpu_s + usage(self.server.pid).cpu_s

    def table(self, schema: str | None, **options: object) -> DataFrame:
        """Returns streams as a table."""
        reader = self.spark.read.format("redis_streams").option("url", self.url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return (reader.schema(schema) if schema else reader).load()

    # --- reading ------------------------------------------------------------------------------------

    def plain_loop(self, stream: str, rows: int) -> Cost:
        """The limit: redis-py on one connection with its callbacks off, thrown away as it comes."""
        client = redis.Redis(port=self.server.port)
        client.response_callbacks.clear()

        def read() -> None:
            last = b"-"
            while page := client.execute_command("XRANGE", stream, last, "+", "COUNT", _PAGE):
                last = b"(" + page[-1][0]

        return self.timed(rows, read)

    def read(self, rows: int, schema: str, **options: object) -> Cost:
        """Reads columns into nothing."""
        return self.timed(rows, lambda: _consume(self.table(schema, **options)))

    def typed(self, stream: str, rows: int) -> Cost:
        """Seven typed columns, decoded by the source."""
        return self.read(rows, PAYLOAD_DDL, streams=stream, payload="json", minPartitions=2)

    def from_json(self, stream: str, rows: int) -> Cost:
        """The same columns, decoded by Spark."""
        raw = self.table("data string", streams=stream, minPartitions=2)
        parsed = raw.select(f.from_json("data", PAYLOAD_DDL).alias("p")).select("p.*")
        return self.timed(rows, lambda: _consume(parsed))

    # --- writing ------------------------------------------------------------------------------------

    def orders(self, rows: int) -> DataFrame:
        """Returns payloads to write, in memory already, in one partition: two writers are held up by the server."""
        filler = f.lit("x" * 120)
        made = self.spark.range(0, rows, numPartitions=1).select(
            f.to_json(f.struct(f.col("id").alias("order_id"), filler.alias("note"))).cast("binary").alias("data")
        )
        made = made.cache()
        made.count()
        return made

    def write(self, orders: DataFrame, rows: int, stream: str, **options: object) -> Cost:
        """Writes with the sink."""
        self.server.client.delete(stream)
        writer = orders.write.format("redis_streams").mode("append").option("url", self.url).option("stream", stream)
        for name, value in options.items():
            writer = writer.option(name, str(value))
        return self.timed(rows, writer.save)

    def write_with_redis_py(self, orders: DataFrame, rows: int, stream: str) -> Cost:
        """Writes with redis-py pipelines in a Spark writer."""
        self.server.client.delete(stream)
        writer = orders.write.format("redis_py_pipeline").mode("append").option("port", self.server.port)
        return self.timed(rows, writer.option("stream", stream).save)

    # --- micro-batches ------------------------------------------------------------------------------

    def micro_batch_ms(self, stream: str, batches: int) -> float:
        """The median of whole micro-batches of ten rows."""
        reader = self.spark.readStream.format("redis_streams").option("url", self.url).option("streams", stream)
        reader = (
            reader.option("startingOffsets", "earliest")
            .option("maxRowsPerTrigger", 10)
            .schema("id string, data binary")
        )
        return _median_trigger(reader.load(), batches, available_now=True)

    def rate_micro_batch_ms(self, batches: int) -> float:
        """The same of Spark's own rate source."""
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        return _median_trigger(reader.load(), batches, available_now=False)


def _consume(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def _median_trigger(table: DataFrame, batches: int, *, available_now: bool) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = table.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        ).start()
        try:
            while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < batches:
                time.sleep(0.05)
        finally:
            query.stop()
        taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        return statistics.median(taken[batches // 3 :])
