"""Why a write of Spark was refused, beyond what can happen to any producer."""

from __future__ import annotations

from penstock.errors import PublishError


class QueryFenced(PublishError):
    """A newer run of the same query writes to the stream; this one is over and must not write any more."""


class ReplayDiffers(PublishError):
    """A partition that is written again brings other rows, or another order, than at first."""


class WriteLost(PublishError):
    """The server no longer knows of rows that it had confirmed; the partition must be written again from its start."""
