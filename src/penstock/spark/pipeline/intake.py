"""The first thing that happens to rows on an executor: those that were not decoded or break a rule are taken out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from penstock.errors import DecodeError, NotAuthentic, PenstockError
from penstock.policy import Reason, unreadable
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, Failure
from penstock.spark.pipeline.spec import CORRUPT, DECODE, WHY_CORRUPT
from penstock.spark.pipeline.steps import Rule
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.source.rows import NOT_AUTHENTIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

INVALID = "_penstock_invalid"
COUNTS = "penstock_rules"
_IS_BROKEN = "NOT coalesce({}, false)"  # null is not true: a row of which a rule cannot be told breaks it


class RowInvalid(PenstockError):
    """A rule that a pipeline sets for its rows is not true for one."""


def labels_of(rules: Sequence[Rule]) -> dict[str, str]:
    """Return what each of the counts of `broken_counts` is of."""
    return {DECODE: DECODE, **{f"rule_{number}": rule.label for number, rule in enumerate(rules)}}


def broken_counts(rows: DataFrame, rules: Sequence[Rule]) -> list[Column]:
    """Return columns that count the rows that do not decode, and of the others those that break each rule."""
    from pyspark.sql import functions as f

    decoded = f"{WHY_CORRUPT} IS NULL" if WHY_CORRUPT in rows.columns else "true"
    broken = [f"{decoded} AND {_IS_BROKEN.format(f'({rule.check})')}" for rule in rules]
    conditions = zip(labels_of(rules), [f"NOT ({decoded})", *broken], strict=True)
    return [f.expr(f"count_if({condition})").alias(name) for name, condition in conditions]


def marked(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows with the first rule that each breaks, of those that take rows out, and without the raw record."""
    from pyspark.sql import functions as f

    mark: Column = f.lit(None).cast("string")
    taking = [rule for rule in rules if rule.action != "warn"]
    for rule in reversed(taking):
        mark = f.when(f.expr(_IS_BROKEN.format(f"({rule.check})")), f.lit(rule.label)).otherwise(mark)
    kept = rows.drop(CORRUPT)
    return kept.withColumn(INVALID, mark) if taking else kept


@dataclass(frozen=True)
class Intake(Shipped):
    """Passes rows on and sends the bad ones to the dead letters; called by Spark with the Arrow batches of a task.

    A row that breaks one of the rules in `fatal` fails the batch instead.
    """

    dead_letters: DeadLetterConfig
    columns: tuple[str, ...]
    fatal: frozenset[str] = frozenset()

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the good rows, with the columns that go on."""
        freeze_gc()
        writer = self.dead_letters.open()
        for batch in batches:
            is_good = _is_good(batch)
            bad = batch.filter(pc.invert(is_good))
            for row in bad.select(_useful(bad)).to_pylist():
                if row.get(WHY_CORRUPT) is None and row[INVALID] in self.fatal:
                    raise RowInvalid(
                        f"entry {row['id']} of {row['stream']!r} breaks the rule {row[INVALID]!r}, whose action is fail"
                    )
                writer.dead_letter(row["stream"], row["id"], row.get("data"), _failure(row))
            good = batch.filter(is_good) if bad.num_rows else batch
            yield good.select(list(self.columns))


def _is_good(batch: Any) -> Any:
    marks = [pc.is_null(batch.column(name)) for name in (WHY_CORRUPT, INVALID) if name in batch.schema.names]
    is_good = marks[0]
    for mark in marks[1:]:
        is_good = pc.and_(is_good, mark)
    return is_good


def _useful(batch: Any) -> list[str]:
    return [name for name in ("stream", "id", "data", WHY_CORRUPT, INVALID) if name in batch.schema.names]


def _failure(row: dict[str, Any]) -> Failure:
    why = row.get(WHY_CORRUPT)
    if why is not None:
        error = NotAuthentic(why) if why.startswith(f"{NOT_AUTHENTIC}:") else DecodeError(why)
        return Failure(unreadable(error), error)
    return Failure(Reason.INVALID, RowInvalid(f"not true: {row[INVALID]}"))
