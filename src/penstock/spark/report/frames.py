"""Messages, dead letters and results of a subject as DataFrames with the few columns that a report needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dead_letter_record import FIELDS
from penstock.spark.archive.read import read
from penstock.spark.archive.status import load_state
from penstock.spark.fingerprint import normalised_sql
from penstock.spark.reading.catalogue import naming
from penstock.spark.report.subject import Subject
from penstock.spark.report.window import Window
from penstock.spark.results.options import FORMAT as RESULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_PLAIN = "stream string, id string, ms bigint, data binary, key string, headers map<string,string>, message_id string"
_TASKS = "stream string, id string, ms bigint, data binary, key string, fields map<string,binary>"
_DEAD = "id string, ms bigint, headers map<string,string>, fields map<string,binary>"
_RESULTS = "task_id string, kind string, status string, attempts bigint, started_at timestamp, finished_at timestamp"
_MOST_ATTEMPTS = 10  # beyond which they are counted together
_LONGEST = 200  # characters of a text that anybody looks at


class Frames:
    """The tables of one report."""

    def __init__(self, spark: SparkSession, subject: Subject, window: Window) -> None:
        self._spark, self._subject, self._window = spark, subject, window

    def messages(self) -> DataFrame:
        """Return `stream, id, kind, key, size, bucket, delay`, one row for each message of the window."""
        rows = self._entries()
        has_fields, has_headers = "fields" in rows.columns, "headers" in rows.columns
        kinds = [*(["cast(fields['kind'] as string)"] * has_fields), *(["headers['kind']"] * has_headers)]
        names = [*(["cast(fields['task_id'] as string)"] * has_fields)]
        names += ["message_id"] if "message_id" in rows.columns else ["cast(fields['message_id'] as string)"]
        name = f"coalesce({', '.join(names)})"
        return rows.where(self._window.within_sql("ms")).selectExpr(
            "stream", "id", f"left(coalesce({', '.join(kinds)}), {_LONGEST}) as kind", f"left(key, {_LONGEST}) as key",
            "coalesce(octet_length(data), 0) as size",
            f"{self._window.bucket_sql('ms')} as bucket",
            f"ms - {made_sql(name)} as delay",
        )  # fmt: skip

    def _entries(self) -> DataFrame:
        subject, window = self._subject, self._window
        archived = self._archived()
        if subject.archive is not None and archived:
            times = (window.low, window.high)
            return read(self._spark, subject.archive, archived, *times, hot=subject.options, fail_on_data_loss=False)
        return self._reader(*subject.names()).schema(_PLAIN if subject.queue is None else _TASKS).load()

    def _reader(self, *streams: str) -> DataFrameReader:
        """Return a reader of what streams hold of the window, if they exist."""
        options = {**self._subject.options, "failOnDataLoss": "false", "waitForStreams": "true"}
        reader = self._spark.read.format("redis_streams").options(**options, **naming(streams))
        return reader.options(startingTimestamp=str(self._window.low), endingTimestamp=str(self._window.high))

    def _archived(self) -> list[str]:
        """Return the streams that there are: an archive refuses one that neither it nor Redis has."""
        if self._subject.archive is None:
            return []
        known = {*load_state(self._subject.archive).ranges, *self._subject.states()}
        return [name for name in self._subject.names() if name in known]

    def dead(self) -> DataFrame:
        """Return `id, ms, reason, error, text, attempts, kind, life, bucket`, one row for each dead letter."""
        # By the name of their stream, since a task queue's are not called after the stream of its tasks.
        reader = self._reader(self._subject.dead_stream)
        return reader.schema(_DEAD).load().selectExpr(
            "id", "ms", f"coalesce({_dlq('reason')}, '') as reason",
            f"left(coalesce({_dlq('error')}, ''), {_LONGEST}) as error",
            f"{normalised_sql(_dlq('error_text'))} as text",
            f"cast(least(try_cast({_dlq('attempts')} as bigint), {_MOST_ATTEMPTS}) as string) as attempts",
            f"left(coalesce(cast(fields['kind'] as string), headers['kind']), {_LONGEST}) as kind",
            f"ms - try_cast(split_part({_dlq('source_id')}, '-', 1) as bigint) as life",
            f"{self._window.bucket_sql('ms')} as bucket",
        )  # fmt: skip

    def results(self) -> DataFrame | None:
        """Return `kind, status, attempts, took, run, bucket`, one row for each; None if there is nowhere to look."""
        options = self._subject.result_options
        if options is None:
            return None
        reader = self._spark.read.format(RESULTS).options(**options).schema(_RESULTS)
        reader = reader.options(startingTimestamp=str(self._window.low), endingTimestamp=str(self._window.high))
        rows = reader.load().selectExpr("*", "unix_millis(finished_at) as ended")
        return rows.selectExpr(
            f"left(kind, {_LONGEST}) as kind", "status",
            f"cast(least(attempts, {_MOST_ATTEMPTS}) as string) as attempts",
            f"ended - {made_sql('task_id')} as took",
            "ended - unix_millis(started_at) as run",
            f"{self._window.bucket_sql('ended')} as bucket",
        )  # fmt: skip


def _dlq(attribute: str) -> str:
    return f"cast(fields['{FIELDS[attribute]}'] as string)"


def made_sql(column: str) -> str:
    """Return the SQL for the millisecond in which an id of Penstock's was made; null for any other id."""
    is_timed = f"{column} rlike '^[0-9a-f]{{12}}7[0-9a-f]{{3}}[89ab][0-9a-f]{{15}}$'"
    return f"if({is_timed}, cast(conv(left({column}, 12), 16, 10) as bigint), null)"
