"""Registers the run of a query before it writes, so that an older run is kept from writing beside it."""

from __future__ import annotations

from penstock.errors import TransientError
from penstock.redis.retry import Repeat
from penstock.spark.patience import Patience
from penstock.spark.sink.identity import Identity
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.ways import fenced
from penstock.sync.redis.client import StreamClient

NOT_TOLD_APART = "0"
# Where rows name their streams, the runs of the query need a place of their own.
_HOME = "penstock"


def register(client: StreamClient, identity: Identity, options: SinkOptions) -> str:
    """Return the epoch of this run; raise QueryFenced if a newer one was seen."""
    if identity.run is None:
        return NOT_TOLD_APART
    key = client.keys(options.stream or _HOME).spark(identity.query)
    patience = Patience(options.retry_timeout_s)
    reply = None
    while reply is None:
        try:
            reply = client.run("spark/run", [key], [identity.run, options.remember_s], Repeat.IDEMPOTENT)
        except TransientError as error:
            patience.bear(error, f"registering run {identity.run}")
    kind, _, epoch = reply.decode().partition(" ")
    if kind == "fenced":
        raise fenced(identity, options.stream)
    return str(epoch)
