"""Resets a pipeline: its next run is a new query that starts at another position."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.spark.lake.files import LocalStore
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.pipeline.status import PROGRESS, START, Driver, checkpoint_folder
from penstock.spark.source.offsets import newest_number
from penstock.spark.source.options import EARLIEST, LATEST, SourceOptions
from penstock.times import moment_ms

_ID = re.compile(r"\(?\d+-\d+")
_OLD = "spark.before-"
_ELSEWHERE = "give the pipeline a new checkpoint, and set source.starting to the position"


@dataclass(frozen=True)
class Reset:
    """What a reset changes. `unfinished` is a batch that may be in some sinks and not in others."""

    starting: dict[str, str]
    committed: int | None
    unfinished: int | None

    def __str__(self) -> str:
        (position,) = self.starting.values()
        done = "has committed no batch" if self.committed is None else f"has committed batch {self.committed}"
        left = (
            ""
            if self.unfinished is None
            else (f"; batch {self.unfinished} is unfinished, and some sinks may already have it")
        )
        return f"The pipeline {done}{left}. Its next run starts over from {position}"


def plan_reset(pipeline: Pipeline, start: str, now_ms: int) -> Reset:
    """Return what a reset would change; `start` is earliest, latest, an id, a time, or how long ago.

    Raises: ConfigurationError for an invalid `start`, or a checkpoint that is not on a disk of this machine.
    """
    folder = checkpoint_folder(pipeline, _ELSEWHERE)
    starting = _starting(start.strip(), now_ms)
    SourceOptions.parse(pipeline.source.spark_options(starting))
    committed, begun = newest_number(folder / "spark" / "commits"), newest_number(folder / "spark" / "offsets")
    is_unfinished = begun is not None and (committed is None or begun > committed)
    return Reset(starting, committed, begun if is_unfinished else None)


def reset(pipeline: Pipeline, planned: Reset) -> None:
    """Carry out a reset. Spark's old checkpoint is kept until the next reset.

    Raises: PipelineBusy while the pipeline runs.
    """
    folder = checkpoint_folder(pipeline, _ELSEWHERE)
    with Driver(folder).alone() as driver:
        for old in folder.glob(f"{_OLD}*"):
            shutil.rmtree(old)
        # First: if this process dies here, the next run continues as before, and the reset can be repeated.
        LocalStore(folder).write(START, json.dumps(planned.starting).encode())
        if (folder / "spark").exists():
            (folder / "spark").rename(folder / f"{_OLD}{datetime.now(UTC):%Y%m%dT%H%M%S}")
        for staged in folder.glob("staging*"):
            shutil.rmtree(staged)
        (folder / PROGRESS).unlink(missing_ok=True)
        driver.end("reset")


def _starting(start: str, now_ms: int) -> dict[str, str]:
    if start in (EARLIEST, LATEST) or _ID.fullmatch(start):
        return {"startingOffsets": start}
    return {"startingTimestamp": str(moment_ms(start, now_ms))}
