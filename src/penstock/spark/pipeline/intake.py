"""The first thing that happens to rows on an executor: those that were not decoded or are not valid are taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from penstock.errors import DecodeError, NotAuthentic, PenstockError
from penstock.policy import Reason, unreadable
from penstock.spark.carried import Carried
from penstock.spark.collector import spare_the_collector
from penstock.spark.pipeline.dead_letters import DeadLetterOffice, Fate
from penstock.spark.pipeline.source import WHY_CORRUPT
from penstock.spark.reading.rows import NOT_AUTHENTIC

INVALID = "_penstock_invalid"


class RowInvalid(PenstockError):
    """A condition that a pipeline sets for its rows is not true for one."""


@dataclass(frozen=True)
class Intake(Carried):
    """Passes rows on and sends the bad ones to the dead letters; called by Spark with the Arrow batches of a task."""

    office: DeadLetterOffice
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the good rows, with the columns that go on."""
        spare_the_collector()
        desk = self.office.open()
        for batch in batches:
            is_good = _is_good(batch)
            bad = batch.filter(pc.invert(is_good))
            for row in bad.select(_useful(bad)).to_pylist():
                desk.dead_letter(row["stream"], row["id"], row.get("data"), _fate(row))
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


def _fate(row: dict[str, Any]) -> Fate:
    why = row.get(WHY_CORRUPT)
    if why is not None:
        error = NotAuthentic(why) if why.startswith(f"{NOT_AUTHENTIC}:") else DecodeError(why)
        return Fate(unreadable(error), error)
    return Fate(Reason.INVALID, RowInvalid(f"not true: {row[INVALID]}"))
