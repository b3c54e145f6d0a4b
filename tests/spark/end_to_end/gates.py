"""Steps in the middle of a query that fail or wait, so that a test can choose the moment at which something breaks.

The functions are made by functions: so they travel to the workers by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Step = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
REACHED, OPEN = "gate:reached", "gate:open"


def failing_once() -> Step:
    """Returns a step that raises behind the first rows of each partition, when it is tried for the first time."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 1 and context.attemptNumber() == 0:
                raise OSError("the first attempt breaks here")
            yield batch

    return step


def waiting(unix_socket: str, batch_id: int) -> Step:
    """Returns a step that waits behind the first rows of one micro-batch, until the gate is opened.

    It waits in the first attempt of a task only. That it does is in the set `gate:reached`, by the query and partition.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import redis
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        is_mine = context.getLocalProperty("streaming.sql.batchId") == str(batch_id) and context.attemptNumber() == 0
        for number, batch in enumerate(batches):
            if number == 1 and is_mine:
                with redis.Redis(unix_socket_path=unix_socket) as client:
                    query = context.getLocalProperty("sql.streaming.queryId")
                    client.sadd("gate:reached", f"{query} {context.partitionId()}")
                    client.blpop(["gate:open"], timeout=240)  # Spark may still start the second query
            yield batch

    return step
