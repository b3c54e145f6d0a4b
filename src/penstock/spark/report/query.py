"""Computes the figures of a report: on the executors, with a fixed number of rows coming back.

Messages, dead letters and results are each read two or three times. Each answer has as many rows as a plot has
intervals or a list has lines, however many messages there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.dead_letter_record import FIELDS
from penstock.spark.archive.read import read
from penstock.spark.payload.opening import opened_rows
from penstock.spark.report.figures import (
    P95,
    SHARES,
    Aggregate,
    Aggregates,
    Cause,
    Failures,
    Figures,
    LargePayload,
    Percentiles,
    TimeAxis,
    Window,
)
from penstock.spark.report.target import Target, archive_coverage, trimmed
from penstock.spark.results.source import FORMAT as RESULTS
from penstock.spark.runtime.errors import normalised_sql
from penstock.spark.runtime.master import require_running
from penstock.spark.source.catalogue import StreamState, naming

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

_PLAIN = "stream string, id string, ms bigint, data binary, key string, headers map<string,string>, message_id string"
_TASKS = "stream string, id string, ms bigint, data binary, key string, fields map<string,binary>"
_DEAD = "id string, ms bigint, data binary, headers map<string,string>, message_id string, fields map<string,binary>"
_RESULTS = "task_id string, kind string, status string, attempts bigint, started_at timestamp, finished_at timestamp"
_MOST_ATTEMPTS = 10  # beyond which they are counted together
_LONGEST = 200  # characters of a text that anybody looks at
_LONGEST_JSON = 1 << 16  # bytes of a payload that is looked into for its kind
_MOST_VALUES = 200  # of one column that come back; more intervals than that there never are
_MOST_CAUSES = 50
_MOST_PAYLOADS = 20
_ACCURACY = 10_000
Progress = Callable[[str], None]


class ReportQuery:
    """The query of one report."""

    def __init__(self, spark: SparkSession, target: Target, window: Window) -> None:
        self._spark, self._target, self._window = spark, target, window

    def figures(self, progress: Progress = lambda _: None) -> Figures:
        """Compute everything; `progress` gets the name of what is being read."""
        require_running(self._spark)
        target, states = self._target, self._target.states()
        progress("messages")
        axis = self._axis(states)
        rows = self._messages(axis)
        messages = aggregate(rows, ("bucket", "kind"), "size", "delay")
        payloads = self._largest(rows)
        progress("dead letters")
        dead = self._dead(axis)
        of_dead = aggregate(dead, ("bucket", "reason", "attempts"), "life", None)
        causes, cause_count = self._causes(dead)
        failures = self._failures(dead)
        progress("results")
        finished = self._finished()
        results = None if finished is None else self._results(finished, axis)
        names = target.names()
        return Figures(
            axis=axis,
            messages=messages,
            dead=of_dead,
            results=results,
            failures=failures,
            causes=causes,
            cause_count=cause_count,
            payloads=payloads,
            groups=target.groups(),
            coverage=None if target.archive is None else archive_coverage(target.archive, names, states),
            trimmed=() if target.archive is not None else trimmed(names, states, self._window),
        )

    # --- the axis of time -----------------------------------------------------------------------

    def _axis(self, states: dict[str, StreamState]) -> TimeAxis:
        """Return the intervals of the plots: those that suit when something happened, and how much."""
        target, window = self._target, self._window
        times = target.times(target.dead_stream, window)
        if target.archive is None:
            count = sum(state.length for name, state in states.items() if name in target.names())
            times += [ms for name in target.names() for ms in target.times(name, window)]
        else:
            count = self._add_times(times, self._entries().where(window.within_sql("ms")), "ms")
        results = self._finished()
        if results is not None:
            self._add_times(times, results, "ended")
        return TimeAxis.fitting(window, min(times, default=None), max(times, default=None), count)

    @staticmethod
    def _add_times(times: list[int], rows: DataFrame, column: str) -> int:
        low, high, count = rows.selectExpr(f"min({column})", f"max({column})", "count(*)").collect()[0]
        times += [ms for ms in (low, high) if ms is not None]
        return int(count)

    # --- messages -------------------------------------------------------------------------------

    def _messages(self, axis: TimeAxis) -> DataFrame:
        """Return `stream, id, kind, key, size, bucket, delay`, one row for each message of the window."""
        rows = self._entries().where(self._window.within_sql("ms"))
        names = ["cast(fields['task_id'] as string)"] if "fields" in rows.columns else []
        names += ["message_id"] if "message_id" in rows.columns else ["cast(fields['message_id'] as string)"]
        name = f"coalesce({', '.join(names)})"
        return self._opened(rows).selectExpr(
            "stream", "id", f"{_kind_sql(rows)} as kind", f"left(key, {_LONGEST}) as key",
            "size",
            f"{axis.bucket_sql('ms')} as bucket",
            f"ms - {made_sql(name)} as delay",
        )  # fmt: skip

    def _opened(self, rows: DataFrame) -> DataFrame:
        """Return rows with the sizes of their payloads as they are in Redis, and opened payloads, for their kinds."""
        rows = rows.selectExpr("*", "coalesce(octet_length(data), 0) as size")
        # A task has a field with its kind.
        return rows if self._target.queue is not None else opened_rows(rows, self._target.link, self._target.stream)

    def _entries(self) -> DataFrame:
        target, window = self._target, self._window
        archived = self._archived()
        if target.archive is not None and archived:
            times = (window.low, window.high)
            return read(self._spark, target.archive, archived, *times, hot=target.reading, fail_on_data_loss=False)
        return self._reader(*target.names()).schema(_PLAIN if target.queue is None else _TASKS).load()

    def _reader(self, *streams: str) -> DataFrameReader:
        """Return a reader of what streams hold of the window, if they exist."""
        options = {**self._target.reading, "failOnDataLoss": "false", "waitForStreams": "true"}
        reader = self._spark.read.format("redis_streams").options(**options, **naming(streams))
        return reader.options(startingTimestamp=str(self._window.low), endingTimestamp=str(self._window.high))

    def _archived(self) -> list[str]:
        """Return the streams that exist: an archive refuses one that neither it nor Redis has."""
        if self._target.archive is None:
            return []
        known = {*self._target.archived(), *self._target.states()}
        return [name for name in self._target.names() if name in known]

    @staticmethod
    def _largest(rows: DataFrame) -> tuple[LargePayload, ...]:
        rows = rows.select("stream", "id", "kind", "key", "size")
        largest = rows.orderBy("size", "id", ascending=[False, True]).limit(_MOST_PAYLOADS).collect()
        return tuple(LargePayload(*row) for row in largest)

    # --- dead letters ---------------------------------------------------------------------------

    def _dead(self, axis: TimeAxis) -> DataFrame:
        """Return `id, ms, reason, error, text, attempts, kind, source, life, bucket`, one row for each dead letter."""
        # By the name of their stream, since a task queue's are not called after the stream of its tasks.
        rows = self._opened(self._reader(self._target.dead_stream).schema(_DEAD).load())
        return rows.selectExpr(
            "id", "ms", f"coalesce({_dlq('reason')}, '') as reason",
            f"left(coalesce({_dlq('error')}, ''), {_LONGEST}) as error",
            f"{normalised_sql(_dlq('error_text'))} as text",
            f"cast(least(try_cast({_dlq('attempts')} as bigint), {_MOST_ATTEMPTS}) as string) as attempts",
            f"{_kind_sql(rows)} as kind",
            f"concat(coalesce({_dlq('source_stream')}, ''), '/', {_dlq('source_id')}) as source",
            f"ms - try_cast(split_part({_dlq('source_id')}, '-', 1) as bigint) as life",
            f"{axis.bucket_sql('ms')} as bucket",
        )  # fmt: skip

    @staticmethod
    def _causes(dead: DataFrame) -> tuple[tuple[Cause, ...], int]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        grouped = dead.groupBy("reason", "error", "text").agg(
            f.count("*").alias("n"), f.min("ms"), f.max("ms"), f.max_by("id", "ms")
        )
        groups = Observation()  # counts all of them on their way to the few that come back
        counted = grouped.observe(groups, f.count(f.lit(1)).alias("n"))
        rows = counted.orderBy(f.desc("n"), "reason", "error", "text").limit(_MOST_CAUSES).collect()
        return tuple(Cause(*row) for row in rows), int(groups.get["n"])

    def _failures(self, dead: DataFrame) -> Failures:
        """Count the messages of the window among those that died: several groups may have given one up."""
        from pyspark.sql import functions as f

        of_window = dead.where(self._window.within_sql("(ms - life)"))
        by_kind = of_window.groupBy("kind").agg(f.count_distinct("source").alias("n"))
        total = f.sum("n").over(_everything()).alias("total")
        rows = by_kind.select("kind", "n", total).orderBy(f.desc("n"), "kind").limit(_MOST_VALUES).collect()
        return Failures(rows[0]["total"], {row["kind"]: row["n"] for row in rows}) if rows else Failures()

    # --- results --------------------------------------------------------------------------------

    def _finished(self) -> DataFrame | None:
        """Return the results of the window, with their end in ms; None if there is nowhere to look."""
        options = self._target.result_options
        if options is None:
            return None
        reader = self._spark.read.format(RESULTS).options(**options).schema(_RESULTS)
        reader = reader.options(startingTimestamp=str(self._window.low), endingTimestamp=str(self._window.high))
        return reader.load().selectExpr("*", "unix_millis(finished_at) as ended")

    @staticmethod
    def _results(finished: DataFrame, axis: TimeAxis) -> Aggregates:
        rows = finished.selectExpr(
            f"left(kind, {_LONGEST}) as kind", "status",
            f"cast(least(attempts, {_MOST_ATTEMPTS}) as string) as attempts",
            f"ended - {made_sql('task_id')} as took",
            "ended - unix_millis(started_at) as run",
            f"{axis.bucket_sql('ended')} as bucket",
        )  # fmt: skip
        return aggregate(rows, ("bucket", "status", "attempts", "kind"), "took", "run")


def _everything() -> Any:
    from pyspark.sql import Window as Over

    return Over.partitionBy()


def _dlq(attribute: str) -> str:
    return f"cast(fields['{FIELDS[attribute]}'] as string)"


def _kind_sql(rows: DataFrame) -> str:
    """Return the SQL for the kind of a message: its field, its header, or what its payload calls so if that is JSON."""
    kinds = ["cast(fields['kind'] as string)"] if "fields" in rows.columns else []
    kinds += ["headers['kind']"] if "headers" in rows.columns else []
    is_json = f"octet_length(data) <= {_LONGEST_JSON} and startswith(data, X'7B')"
    kinds.append(f"if({is_json}, get_json_object(cast(data as string), '$.kind'), null)")
    return f"left(coalesce({', '.join(kinds)}), {_LONGEST})"


def made_sql(column: str) -> str:
    """Return the SQL for the millisecond when Penstock created an id; null for any other id."""
    is_timed = f"{column} rlike '^[0-9a-f]{{12}}7[0-9a-f]{{3}}[89ab][0-9a-f]{{15}}$'"
    return f"if({is_timed}, cast(conv(left({column}, 12), 16, 10) as bigint), null)"


def aggregate(rows: DataFrame, columns: Sequence[str], first: str, second: str | None) -> Aggregates:
    """Count rows and compute percentiles, all together and by each of the columns, in one pass."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as f

    sets = [[f.col(name)] for name in columns]
    measures = [*_percentiles(first, "first"), *_percentiles(second, "second")]
    grouped = rows.groupingSets([*sets, []], *columns).agg(
        f.grouping_id().alias("level"), f.count("*").alias("n"), f.sum(first).alias("total"), *measures
    )
    # Of many kinds, the slowest or the most frequent are of interest; intervals and the like are never that many.
    order = [f.col("second_values")[P95].desc_nulls_last()] if second == "run" else []
    rank = f.row_number().over(Over.partitionBy("level").orderBy(*order, f.desc("n"), *columns))
    return _aggregates(grouped.withColumn("rank", rank).where(f"rank <= {_MOST_VALUES}").collect(), columns)


def _percentiles(column: str | None, name: str) -> list[Column]:
    from pyspark.sql import functions as f

    value = f.lit(None).cast("bigint") if column is None else f.col(column).cast("bigint")
    values = f.percentile_approx(value, list(SHARES), _ACCURACY)
    return [f.count(value).alias(f"{name}_count"), values.alias(f"{name}_values")]


def _aggregates(rows: Sequence[Any], columns: Sequence[str]) -> Aggregates:
    by: dict[str, list[Aggregate]] = {name: [] for name in columns}
    whole = Aggregate(None, 0)
    # Spark's number of a level has a bit for each column that it leaves out, the first column's being the highest.
    all_out = (1 << len(columns)) - 1
    levels = {all_out ^ (1 << (len(columns) - 1 - index)): name for index, name in enumerate(columns)}
    for row in sorted(rows, key=lambda row: row["rank"]):
        column = levels.get(row["level"])
        found = Aggregate(
            None if column is None else row[column],
            row["n"],
            row["total"] or 0,
            Percentiles(row["first_count"], tuple(row["first_values"] or ())),
            Percentiles(row["second_count"], tuple(row["second_values"] or ())),
        )
        if column is None:
            whole = found
        else:
            by[column].append(found)
    return Aggregates(whole, by)
