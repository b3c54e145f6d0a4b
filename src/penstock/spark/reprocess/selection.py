"""Which messages are processed again, as a DataFrame whose rows are the same whenever it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.errors import ConfigurationError, StreamMissing
from penstock.keys import StreamKeys
from penstock.policy import Reason
from penstock.spark.archive.file_reader import check_on_executors
from penstock.spark.archive.read import check_order, chosen, files_between, read
from penstock.spark.archive.table import load_state
from penstock.spark.lake.files import Location
from penstock.spark.runtime.errors import filtered
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.option_values import Options
from penstock.spark.runtime.retry import retry
from penstock.spark.source.catalogue import look

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a task needs of a message; `letter` is the id of the dead letter, null for an archived message.
COLUMNS = ("stream", "id", "data", "key", "headers", "message_id", "kind", "letter")
_KIND = "coalesce(cast(fields['kind'] as string), headers['kind']) as kind"
_ROWS_A_TASK = 10_000
_RETRY_S = 60.0


class Selection(Protocol):
    """Messages to be processed again."""

    @property
    def where(self) -> str | None:
        """The condition of the user, if there is one."""

    @property
    def keeps_failures(self) -> bool:
        """Whether a failure is a result as well: where nothing else would tell of it."""

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""

    def check_files(self, spark: SparkSession) -> None:
        """Raise ArchiveDamaged for files that must not be read."""

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the messages, with the columns above."""


@dataclass(frozen=True)
class Archived:
    """Messages of an archive, from a time on and before another one (in milliseconds)."""

    root: str | Path
    stream: str
    low: int | None = None
    high: int | None = None
    where: str | None = None
    keeps_failures = True

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""
        check_order(self.low, self.high)
        chosen(load_state(self.root), self.stream, is_hot=False)

    def check_files(self, spark: SparkSession) -> None:
        """Raise ArchiveDamaged if a file is not what was written; before any message is handled."""
        found = files_between(load_state(self.root), [self.stream], self.low, self.high)
        check_on_executors(spark, Location.of(self.root, what="archive"), found)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the messages."""
        found = _filtered(read(spark, self.root, self.stream, self.low, self.high), self.where)
        return found.selectExpr(*COLUMNS[:6], _KIND, "cast(null as string) as letter")


@dataclass(frozen=True)
class SelectedDeadLetters:
    """Dead letters of a stream, those of one reason if one is given; those that come later are not among them."""

    options: Mapping[str, str] = field(repr=False)
    stream: str = ""
    reason: str | None = None
    where: str | None = None
    keeps_failures = False  # they stay dead letters

    def check(self) -> None:
        """Raise ConfigurationError or StreamMissing for what cannot work; without Spark."""
        if self.reason is not None and self.reason not in set(Reason):
            raise ConfigurationError(f"--reason {self.reason!r} is none: there are {', '.join(Reason)}")
        assert self.last_id

    def check_files(self, spark: SparkSession) -> None:
        """Do nothing: they are in Redis."""

    @property
    def link(self) -> Link:
        """The way to Redis."""
        return Link.from_options(Options(self.options))

    @property
    def key(self) -> str:
        """The stream of the dead letters."""
        return StreamKeys(self.stream).default_dead_letters()

    @cached_property
    def last_id(self) -> str:
        """The id of the newest dead letter when this was first asked for: what comes later is not meant."""
        state = retry(lambda: look(self.link.client(), [self.key]), _RETRY_S)[self.key]
        if state is None:
            raise StreamMissing(f"there are no dead letters of stream {self.stream!r}: no stream {self.key!r} exists")
        return state.last_id

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the dead letters as the messages that they were."""
        options = {**self.options, "streams": self.stream, "view": "dead_letters", "failOnDataLoss": "false"}
        options |= {"endingOffsets": self.last_id, "maxRowsPerPartition": str(_ROWS_A_TASK)}
        found = _filtered(spark.read.format("redis_streams").options(**options).load(), self.where)
        if self.reason is not None:
            found = found.where(f"reason = '{self.reason}'")
        return found.selectExpr(
            "coalesce(source_stream, stream) as stream", "coalesce(source_id, id) as id", *COLUMNS[2:6], _KIND,
            "id as letter",
        )  # fmt: skip


def _filtered(rows: DataFrame, condition: str | None) -> DataFrame:
    return rows if condition is None else filtered(rows, condition)
