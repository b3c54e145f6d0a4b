"""Who writes: what makes a repeated write recognisable, and an older run of a query distinguishable from a newer one.

Spark tells a task these, as local properties (Spark 4.3):

| property                | is                    | over a restart from the checkpoint |
|-------------------------|-----------------------|------------------------------------|
| `sql.streaming.queryId` | the query             | the same                           |
| `streaming.sql.batchId` | the micro-batch       | the same rows under the same id    |
| `spark.jobGroup.id`     | the run of the query  | another                            |

The driver's writer sees none of them: it is made anew for each micro-batch in a process that has no task. So it is the
tasks that register their run, before they write anything: a run that was never seen becomes the newest one, and gets
the time of the server as its epoch; a run that was seen before a newer one is fenced. An old driver that still runs has
been seen, or has written nothing; either way it cannot write beside the new one.

A batch write is known by the option `writeId`, if there is one. It has no runs: whoever repeats it continues it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pyspark import TaskContext

from penstock.errors import ConfigurationError
from penstock.spark.sink.options import SinkOptions

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class Identity:
    """The write of one partition; `run` is None where runs are not told apart."""

    query: str
    run: str | None
    batch: int
    partition: int

    @classmethod
    def of_task(cls, options: SinkOptions) -> Identity:
        """Learn it from the task that runs here."""
        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("rows are written by tasks of Spark, and none runs here")
        if options.semantics == "at-least-once":
            # Known to nobody: each attempt is a write of its own.
            return cls(f"task-{secrets.token_hex(8)}", None, 0, context.partitionId())
        if options.write_id is not None:
            return cls(options.write_id, None, options.batch_id, context.partitionId())
        query, batch, run = (context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
        if query is None or batch is None:
            raise ConfigurationError(
                f"Spark does not say which query and batch this is ({QUERY}, {BATCH}), so a repeated write cannot be "
                "recognised; use option semantics=at-least-once"
            )
        return cls(query, run, int(batch), context.partitionId())
