"""Spark's long errors in one line."""

from __future__ import annotations

from contextlib import ExitStack

from penstock.spark.runtime.errors import is_server_gone, one_line, without_query_log

LONG = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: x
Return Message: Traceback (most recent call last):
  File "a.py", line 1, in f
    raise Crash(step)
shop.work.Crash: it: fell

\tat org.apache.spark.Somewhere(x.scala:1)
SQLSTATE: 39000
=== Streaming Query ===
Identifier: shop [id = 1, runId = 2]
"""


def test_the_end_of_a_traceback_is_what_it_is_about() -> None:
    assert one_line(LONG) == "Crash: it: fell"


def test_what_spark_4_1_says_of_the_reader_that_it_could_not_make_is_left_out() -> None:
    told = LONG.replace(
        "\n\n\tat",
        "\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        "UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value\n\tat",
    )
    assert one_line(told) == "Crash: it: fell"


def test_without_a_traceback_the_first_line_is() -> None:
    assert one_line("\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELCT'.\n\n== SQL ==\nSELCT") == (
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELCT'."
    )


def test_a_long_line_is_cut_and_an_empty_one_is_named() -> None:
    assert len(one_line("x" * 10_000)) < 700
    assert one_line("") == "''"


def test_a_server_that_does_not_answer_is_named_whatever_grpc_shows_of_it() -> None:
    told = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "connection refused"
\tdebug_error_string = "x"
>"""
    assert one_line(told) == "the Spark Connect server does not respond (connection refused)"
    assert is_server_gone(told)
    assert not is_server_gone(LONG)


def test_of_an_error_of_java_in_a_traceback_its_own_words_are_told() -> None:
    bridge = "py4j.protocol.Py4JJavaError: An error occurred while calling o535.parquet.\n"
    first = ": org.apache.spark.SparkException: {}\n\tat org.apache.spark.Somewhere(x.scala:1)\n"
    below = "Caused by: java.io.FileNotFoundException: File file:/c/state/0/0/1.delta does not exist\n"
    for words, told in {
        "[CANNOT_LOAD_STATE_STORE] It cannot.": "[CANNOT_LOAD_STATE_STORE] It cannot.",
        "Job aborted.": "File file:/c/state/0/0/1.delta does not exist",
    }.items():
        assert one_line(LONG.replace("shop.work.Crash: it: fell\n", bridge + first.format(words) + below)) == told
    assert one_line(LONG.replace("shop.work.Crash: it: fell\n", bridge)).startswith("Py4JJavaError: An error occurred")


class Passed(Exception):
    """An error as PySpark passes it on: with another one below."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


def test_an_error_that_only_passes_another_one_on_gives_way_to_it() -> None:
    root = Passed("\nNot all StateStores committed\nfor batch 0")
    carried = Passed(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Exception thrown in awaitResult: ",
        Passed("Exception thrown in awaitResult: ", root),
    )
    assert one_line(carried) == "Not all StateStores committed"
    told = Passed(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [DIVIDE_BY_ZERO] By zero.", root
    )
    assert one_line(told) == "[DIVIDE_BY_ZERO] By zero."


def test_the_query_log_stays_off_until_the_last_of_several_pipelines_has_ended() -> None:
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    first, second = ExitStack(), ExitStack()
    first.enter_context(without_query_log())
    second.enter_context(without_query_log())
    first.close()
    assert logger.disabled
    second.close()
    assert not logger.disabled
