"""What most people would write: redis-py pipelines inside Spark's own Arrow writer."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

_CHUNK = 500


class _Writer(DataSourceArrowWriter):
    def __init__(self, port: int, stream: str) -> None:
        self._port, self._stream = port, stream

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        client = redis.Redis(port=self._port)
        for batch in iterator:
            values = batch.column("data").to_pylist()
            for start in range(0, len(values), _CHUNK):
                pipe = client.pipeline(transaction=False)
                for value in values[start : start + _CHUNK]:
                    pipe.xadd(self._stream, {"data": value})
                pipe.execute()
        return WriterCommitMessage()


class PipelineSink(DataSource):
    """Format `redis_py_pipeline`."""

    @classmethod
    def name(cls) -> str:
        return "redis_py_pipeline"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002  # Spark's signature
        return _Writer(int(self.options["port"]), self.options["stream"])
