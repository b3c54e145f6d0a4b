"""What Spark says at length, in one line; and what errors have in common."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError, text_of
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRACEBACK = "Traceback (most recent call last)"
_PLAN = "=== Streaming Query ==="  # after it come offsets and the plan of the query
# The last line of a traceback: it is not indented, and names a class.
_RAISED = re.compile(r"(?:[a-z_]\w*\.)*([A-Z]\w*[a-z]\w*): (.+)")
# What Spark says of a failure that it only passes on from another thread or from a task.
_CARRIER = re.compile(r"thrown in awaitResult|Job aborted|Task failed while writing|\[TASK_WRITE_FAILED\]")
_EMPTY = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
# How gRPC, which Spark Connect uses, reports that the server does not respond.
_NO_SERVER = re.compile(r'StatusCode\.UNAVAILABLE\n\s*details = "(.*)"')
# What Java raised, in the text of the one error that the bridge to Java has for all of them.
_BRIDGE = "Py4JJavaError"
_IN_JAVA = re.compile(r"(?:: |Caused by: )[\w.$]+: (.+)")
# What Spark 4.1 says last when a source could not be made: it stops the reader that it does not have.
_NO_READER = "cannot access local variable 'reader'"
_CLOCK = re.compile(r"Current(?:Date|Time|Timestamp)|Now|LocalTimestamp|CurBatchTimestamp")
# Transient failures of servers and networks, by what Spark's error contains.
_TRANSIENT = re.compile(
    r"\b(ConnectionFailed|ConnectionLost|CommandTimeout|ServerBusy|ReadOnlyServer|NotReplicating|OutOfMemory"
    r"|BackendUnavailable|OperationalError|AdminShutdown|CrashShutdown|CannotConnectNow|DeadlockDetected"
    r"|SerializationFailure|JdbcUnavailable|terminating connection due to|the database system is"
    r"|StageDiffers|StoreFailed|ExecutorLostFailure|ConnectException|SocketTimeoutException"
    r"|Connection (?:refused|reset)|Broken pipe|timed out|No route to host|error sending request"
    # Other writers of a table: the library of Delta Lake, its jars, and those of Iceberg.
    r"|CommitConflict|Concurrent\w+Exception|MetadataChangedException|IcebergBusy|CommitFailedException"
    # Object stores and catalogues, as Java, deltalake and pyarrow spell it. 501: the store lacks a feature.
    r"|[Ss]tatus [Cc]ode: (?:429|5(?!01)\d\d)|AWSServiceThrottledException"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT)"
    r"|ServiceUnavailableError|TooManyRequestsError|CommitStateUnknownException"
    r"|Python worker (?:exited unexpectedly|failed to connect back))\b"
)
_MOST = 600
# What differs from message to message in the text of the same error. In this order; both Java and Python understand
# them. What stands for a value is not taken for one afterwards.
PATTERNS = (
    (r"\b[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b0x[0-9a-fA-F]+\b", "<id>"),
    # Quotation marks by their codes, since they stand in SQL as well; one within a word is an apostrophe.
    (r"(?<!\w)\x27[^\x27]*\x27|\x22[^\x22]*\x22", "<text>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
    (r"[ \t\r\n]+", " "),
)
FINGERPRINT_LENGTH = 200


class StopAsked(PenstockError):
    """The query was asked to stop, and this batch has not begun."""


def is_server_gone(error: object) -> bool:
    """Return whether an error says that a Spark Connect server does not answer."""
    return _NO_SERVER.search(_said(error)) is not None


def is_transient_failure(failure: str) -> bool:
    """Return whether a failure is transient, by the text of Spark's error."""
    from penstock.results.postgres_table import LOGIN_REFUSED  # for this rare case only

    return _TRANSIENT.search(failure) is not None and not LOGIN_REFUSED.search(failure)


def root_cause(error: object) -> str | None:
    """Return the first line of the cause that is below all others."""
    cause = getattr(error, "_cause", None)
    if cause is None:
        return None
    lines = [line.strip() for line in _said(cause).splitlines() if line.strip()]
    return root_cause(cause) or (lines[0] if lines else None)


def _of_java(lines: list[str]) -> str | None:
    """Return the first of Java's errors that does not only pass another one on."""
    raised = [match[1] for match in map(_IN_JAVA.match, lines) if match]
    return next((text for text in raised if not _CARRIER.search(text)), None)


def _said(error: object) -> str:
    # The whole of it, for what counts stands at its end; the error may be one of the user's, which cannot be shown.
    try:
        return str(error)
    except BaseException:
        return text_of(error) if isinstance(error, BaseException) else type(error).__name__


def one_line(error: object, masked: Callable[[str], str] = str) -> str:
    """Return what an error is about: the end of the Python traceback that it carries, or else its first line.

    `masked` removes secrets. It is called before a long text is cut, because a part of a secret is not recognised.
    """
    whole = _said(error).partition(_PLAN)[0]
    gone = _NO_SERVER.search(whole)
    if gone:
        return f"the Spark Connect server does not respond ({gone[1]})"
    lines = [line.rstrip() for line in whole.splitlines() if line.strip()] or [
        text_of(error, repr) if isinstance(error, BaseException) else repr(error)
    ]
    begun = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
    text = _EMPTY.sub("", lines[0].strip())
    if begun is None and _CARRIER.search(text):
        text = root_cause(error) or text
    if begun is not None:
        found = [match for match in map(_RAISED.match, lines[begun:]) if match and _NO_READER not in match[2]]
        if found:
            text = f"{found[-1][1]}: {found[-1][2]}"
        if found and found[-1][1] == _BRIDGE:
            text = _of_java(lines[begun:]) or text
    text = masked(text)
    return text if len(text) <= _MOST else text[:_MOST] + "..."


@contextmanager
def without_query_log() -> Iterator[None]:
    """Keep PySpark from logging query errors, which the caller reports in one line and without secrets.

    The loggers belong to the process, so the last of several pipelines to leave enables them again.
    """
    with _query_log:
        yield


class _QueryLog:
    """PySpark's loggers of query errors."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._before: list[tuple[logging.Logger, bool]] = []

    def __enter__(self) -> None:
        from pyspark.logger import PySparkLogger

        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            loggers = map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger"))
            self._before = [(logger, logger.disabled) for logger in loggers]
            for logger, _ in self._before:
                logger.disabled = True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            for logger, was_disabled in self._before if not self._users else ():
                logger.disabled = was_disabled


_query_log = _QueryLog()


@contextmanager
def one_line_errors(condition: str) -> Iterator[None]:
    """Raise ConfigurationError for what Spark finds wrong with `--where`, or with what it makes of a message."""
    from pyspark.errors import PySparkException

    try:
        with without_query_log():
            yield
    except PySparkException as error:
        text = " ".join(str(error).partition("SQLSTATE")[0].split())  # after it come the plan and Java's stack
        raise ConfigurationError(f"--where {condition!r}: {text}") from None


def filtered(rows: DataFrame, condition: str) -> DataFrame:
    """Return the rows for which a condition is true; raise ConfigurationError for one that cannot be."""
    with one_line_errors(condition):
        found = rows.where(condition)
        _ = found.schema  # Spark Connect looks at the condition only now
        if what := unsteady(rows, found):
            raise ConfigurationError(f"--where {condition!r} selects different messages each time: remove {what}")
    return found


def unsteady(rows: DataFrame, found: DataFrame) -> str | None:
    """Return what a condition must leave out to choose the same rows when they are computed again; None if nothing.

    `found` are the rows that it chooses.
    """
    if is_connect(rows.sparkSession):
        return None
    plan = analyzed(found)
    if analyzed(rows).deterministic() and not plan.deterministic():
        return "rand(), uuid() and such"
    return "now() and such" if _reads_clock(plan) else None


def _reads_clock(plan: Any) -> bool:
    """Return whether the condition of a plan, which is the last thing in it, depends on when it is asked."""
    while plan.nodeName() != "Filter":
        plan = plan.children().apply(0)
    waiting = [plan.condition()]
    while waiting:
        expression = waiting.pop()
        if _CLOCK.fullmatch(expression.nodeName()):
            return True
        waiting += listed(expression.children())
    return False


def listed(found: Any) -> list[Any]:
    """Return what is in a Seq of Scala."""
    return [found.apply(number) for number in range(found.size())]


def analyzed(rows: DataFrame) -> Any:
    """Return the plan of rows as Java has it."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows a plan only by printing it


def normalised_sql(column: str) -> str:
    """Return the SQL for a text without ids, quotations and numbers; null is ''."""
    made = f"coalesce({column}, '')"
    for pattern, sign in PATTERNS:
        made = f"regexp_replace({made}, r'{pattern}', '{sign}')"
    return f"left(trim({made}), {FINGERPRINT_LENGTH})"
