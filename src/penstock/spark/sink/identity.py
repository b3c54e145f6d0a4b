"""Who writes: what makes a repeated write recognisable, and an older run of a query distinguishable from a newer one.

Spark passes these to a task as local properties (Spark 4.3):

| property                | is                    | over a restart from the checkpoint |
|-------------------------|-----------------------|------------------------------------|
| `sql.streaming.queryId` | the query             | the same                           |
| `streaming.sql.batchId` | the micro-batch       | the same rows under the same id    |
| `spark.jobGroup.id`     | the run of the query  | another                            |

The driver's writer sees none of them: it is created for each micro-batch in a process that has no task. So it is the
tasks that register their run, before they write anything: a run that was never seen becomes the newest one, and gets
the time of the server as its epoch; a run that was seen before a newer one is fenced. An old driver that still runs has
been seen, or has written nothing; either way it cannot write alongside the new one.

A batch write is known by the option `writeId`, if there is one. It has no runs: repeating it continues it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pyspark import TaskContext

from penstock.errors import ConfigurationError, PublishError, TransientError
from penstock.redis.retry import Repeat
from penstock.spark.runtime.link import Retries
from penstock.spark.sink.options import SinkOptions
from penstock.sync.redis.client import StreamClient

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
NOT_TOLD_APART = "0"
# Where rows name their streams, the runs of the query need a place of their own.
_HOME = "penstock"


@dataclass(frozen=True)
class Identity:
    """The write of one partition; `run` is None where runs are not distinguished."""

    query: str
    run: str | None
    batch: int
    partition: int

    @classmethod
    def of_task(cls, options: SinkOptions) -> Identity:
        """Learn it from the task that runs here."""
        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("rows can be written only in a Spark task, and none is running here")
        if options.semantics == "at-least-once":
            # Random: each attempt is a write of its own.
            return cls(f"task-{secrets.token_hex(8)}", None, 0, context.partitionId())
        if options.write_id is not None:
            return cls(options.write_id, None, options.batch_id, context.partitionId())
        query, batch, run = (context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
        if query is None or batch is None:
            raise ConfigurationError(
                f"Spark did not provide the query and batch ({QUERY}, {BATCH}), so a repeated write cannot be "
                "recognised; set option semantics=at-least-once"
            )
        return cls(query, run, int(batch), context.partitionId())


class QueryFenced(PublishError):
    """A newer run of the same query writes to the stream; this one is over and must not write any more."""


class ReplayDiffers(PublishError):
    """A partition that is written again brings other rows, or another order, than at first."""


class WriteLost(PublishError):
    """The server no longer knows of rows that it had confirmed; the partition must be written again from its start."""


def register(client: StreamClient, identity: Identity, options: SinkOptions) -> str:
    """Return the epoch of this run; raise QueryFenced if a newer one was seen."""
    if identity.run is None:
        return NOT_TOLD_APART
    key = client.keys(options.stream or _HOME).spark(identity.query)
    retries = Retries(options.retry_timeout_s)
    reply = None
    while reply is None:
        try:
            reply = client.run("spark/run", [key], [identity.run, options.remember_s], Repeat.IDEMPOTENT)
        except TransientError as error:
            retries.wait_or_raise(error, f"registering run {identity.run}")
    kind, _, epoch = reply.decode().partition(" ")
    if kind == "fenced":
        raise fenced(identity, options.stream)
    return str(epoch)


def fenced(identity: Identity, stream: str | None) -> QueryFenced:
    """Return the error for a run that is not the newest."""
    where = f" to stream {stream!r}" if stream else ""
    return QueryFenced(
        f"run {identity.run} of query {identity.query} may no longer write{where}, because a newer run of the "
        "same query does. Only one driver may run from a checkpoint; stop this one"
    )
