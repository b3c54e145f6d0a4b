"""Reprocess: a handler over messages of an archive or over dead letters, on Spark, one result for each message."""

from penstock.spark.reprocess.run import (
    CONF,
    Archived,
    FailedMessages,
    Reprocess,
    SelectedDeadLetters,
    Selection,
    Summary,
)
from penstock.spark.reprocess.task import Work

__all__ = ["CONF", "Archived", "FailedMessages", "Reprocess", "SelectedDeadLetters", "Selection", "Summary", "Work"]
