"""Computes the figures of a report: on the executors, with a fixed number of rows coming back.

Messages are read twice (once for all counts and spreads, once for the biggest payloads), dead letters twice, results
once. Each answer has as many rows as a plot has intervals or a list has lines, however many messages there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.spark.report.coverage import coverage_of
from penstock.spark.report.figures import SHARES, Family, Figures, Fingerprint, Group, Payload, Spread
from penstock.spark.report.frames import Frames
from penstock.spark.report.subject import Subject
from penstock.spark.report.trimmed import notes_of
from penstock.spark.report.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MOST_GROUPS = 200  # of one name that come back; more intervals than that there never are
_MOST_FINGERPRINTS = 50
_MOST_PAYLOADS = 20
_ACCURACY = 10_000
Tell = Callable[[str], None]


class Study:
    """One report in the making."""

    def __init__(self, spark: SparkSession, subject: Subject, window: Window) -> None:
        self._subject, self._window = subject, window
        self._frames = Frames(spark, subject, window)

    def figures(self, tell: Tell = lambda _: None) -> Figures:
        """Compute everything; `tell` hears what is being read."""
        states = self._subject.states()
        tell("messages")
        messages = family(self._frames.messages(), ("bucket", "kind"), "size", "delay")
        payloads = self._payloads()
        tell("dead letters")
        dead = self._frames.dead()
        of_dead = family(dead, ("bucket", "reason", "attempts", "kind"), "life", None)
        fingerprints, count = self._fingerprints(dead)
        tell("results")
        results = self._frames.results()
        return Figures(
            messages=messages,
            dead=of_dead,
            results=None
            if results is None
            else family(results, ("bucket", "status", "attempts", "kind"), "took", "run"),
            fingerprints=fingerprints,
            fingerprint_count=count,
            payloads=payloads,
            coverage=coverage_of(self._subject, states),
            notes=notes_of(self._subject, states, self._window),
        )

    def _payloads(self) -> tuple[Payload, ...]:
        rows = self._frames.messages().select("stream", "id", "kind", "key", "size")
        biggest = rows.orderBy("size", "id", ascending=[False, True]).limit(_MOST_PAYLOADS).collect()
        return tuple(Payload(*row) for row in biggest)

    @staticmethod
    def _fingerprints(dead: DataFrame) -> tuple[tuple[Fingerprint, ...], int]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        grouped = dead.groupBy("reason", "error", "text").agg(
            f.count("*").alias("n"), f.min("ms"), f.max("ms"), f.max_by("id", "ms")
        )
        groups = Observation()  # counts all of them on their way to the few that come back
        counted = grouped.observe(groups, f.count(f.lit(1)).alias("n"))
        rows = counted.orderBy(f.desc("n"), "reason", "error", "text").limit(_MOST_FINGERPRINTS).collect()
        return tuple(Fingerprint(*row) for row in rows), int(groups.get["n"])


def family(rows: DataFrame, names: Sequence[str], first: str, second: str | None) -> Family:
    """Count rows and spread their values, all together and by each of the names, in one pass."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as f

    sets = [[f.col(name)] for name in names]
    spreads = [*_spread(first, "first"), *_spread(second, "second")]
    grouped = rows.groupingSets([*sets, []], *names).agg(
        f.grouping_id().alias("level"), f.count("*").alias("n"), f.sum(first).alias("total"), *spreads
    )
    # Of many kinds, the slowest or the most frequent are of interest; intervals and the like are never that many.
    order = [f.col("second_values")[2].desc_nulls_last()] if second == "run" else []
    place = f.row_number().over(Over.partitionBy("level").orderBy(*order, f.desc("n"), *names))
    return _family(grouped.withColumn("place", place).where(f"place <= {_MOST_GROUPS}").collect(), names)


def _spread(column: str | None, name: str) -> list[Column]:
    from pyspark.sql import functions as f

    value = f.lit(None).cast("bigint") if column is None else f.col(column).cast("bigint")
    spread = f.percentile_approx(value, list(SHARES), _ACCURACY)
    return [f.count(value).alias(f"{name}_count"), spread.alias(f"{name}_values")]


def _family(rows: Sequence[Any], names: Sequence[str]) -> Family:
    by: dict[str, list[Group]] = {name: [] for name in names}
    whole = Group(None, 0)
    # Spark's number of a level has a bit for each name that it leaves out, the first name's being the highest.
    all_out = (1 << len(names)) - 1
    levels = {all_out ^ (1 << (len(names) - 1 - place)): name for place, name in enumerate(names)}
    for row in sorted(rows, key=lambda row: row["place"]):
        name = levels.get(row["level"])
        group = Group(
            None if name is None else row[name],
            row["n"],
            row["total"] or 0,
            Spread(row["first_count"], tuple(row["first_values"] or ())),
            Spread(row["second_count"], tuple(row["second_values"] or ())),
        )
        if name is None:
            whole = group
        else:
            by[name].append(group)
    return Family(whole, by)
