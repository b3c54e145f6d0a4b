"""Steps branch, sinks take some of the rows, and rules count what they find; a crash changes none of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.events import Event, EventName
from penstock.spark.pipeline import Handler, Parquet, Pipeline, RedisStreams, Rule, Sql
from penstock.spark.pipeline.running import PipelineFailed, Report, Run
from penstock.spark.pipeline.steps import trunk_of
from penstock.spark.pipeline.validation import PipelineInvalid
from tests.spark.pipeline.conftest import SHOP, add_orders, dead_letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
Table = Callable[..., list[Any]]


class Crash(Exception):
    """Ends a run between two steps."""


def test_the_trunk_is_what_all_sinks_share() -> None:
    steps = (Sql("SELECT * FROM input", name="a"), Sql("SELECT * FROM input", name="b"), Sql("SELECT * FROM A, b"))
    assert trunk_of(steps, [3]) == 3
    assert trunk_of(steps, [2, 3]) == 1
    assert trunk_of(steps, [1, 2]) == 1
    assert trunk_of(steps, [0, 3]) == 0
    assert trunk_of(steps[:2], [2]) == 2


def branching(pipeline_of: Declare, tmp_path: Path, **given: Any) -> Pipeline:
    return pipeline_of(
        Sql("SELECT *, n % 2 AS parity FROM input", name="marked"),
        Sql("SELECT n, n * 10 AS tenfold FROM input WHERE n >= 5", name="large"),
        Handler(f"{SHOP}:fickle", name="handled", from_="marked"),
        sinks=(
            Parquet(str(tmp_path / "table"), from_="marked", where="parity = 0"),
            Parquet(str(tmp_path / "large"), from_="large", name="large"),
            Parquet(str(tmp_path / "handled"), from_="handled", name="handled"),
            Parquet(str(tmp_path / "raw"), from_="source", name="raw", where="n < 3"),
        ),
        **given,
    )


def test_each_sink_gets_the_rows_of_its_step_that_it_asks_for(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    run(branching(pipeline_of, tmp_path))
    assert table() == [0, 2, 4, 6, 8]
    assert table("tenfold", "large") == [50, 60, 70, 80, 90]
    assert table("n", "raw") == [0, 1, 2]
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    assert sorted([*table("n", "handled"), *given_up]) == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("at", ["staged", "stage complete", "parquet written", "parquet shown", "done"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_at_any_point_leaves_each_row_once_on_each_branch(
    spark: SparkSession,
    stream_redis: redis.Redis,
    pipeline_of: Declare,
    run: RunOnce,
    table: Table,
    tmp_path: Path,
    at: str,
    nth: int,
) -> None:
    add_orders(stream_redis, 10)
    pipeline = branching(pipeline_of, tmp_path)
    seen: list[str] = []

    def crash(step: str) -> None:
        seen.append(step)
        if seen.count(at) == nth:
            raise Crash(step)

    if at == "done" and nth == 2:
        pytest.skip("there is one batch")
    with pytest.raises(PipelineFailed):
        Run(pipeline, spark, once=True, mark=crash).run()
    run(pipeline)
    assert table() == [0, 2, 4, 6, 8]
    assert table("tenfold", "large") == [50, 60, 70, 80, 90]
    given_up = [json.loads(letter["data"])["n"] for letter in dead_letters(stream_redis)]
    assert sorted([*table("n", "handled"), *given_up]) == list(range(10))


def test_one_sink_takes_some_of_the_rows_without_a_stage(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, tmp_path: Path
) -> None:
    add_orders(stream_redis, 10)
    run(pipeline_of(sinks=Parquet(str(tmp_path / "table"), where="n > 6")))
    assert table() == [7, 8, 9]
    assert not (tmp_path / "checkpoint" / "staging").exists()


@pytest.mark.parametrize(
    ("steps", "sinks", "told"),
    [
        ((), (Parquet("/tmp/t", where="m > 1"),), "sink 1 (parquet): where: [UNRESOLVED_COLUMN"),
        ((), (Parquet("/tmp/t", where="n > rand()"),), "sink 1 (parquet): where: 'n > rand()' selects different rows each time"),
        (
            (Sql("SELECT * FROM input", name="a"), Sql("SELECT n, count(*) AS c FROM input GROUP BY n")),
            (Parquet("/tmp/t", from_="a"), Parquet("/tmp/u", name="counts")),
            "step 2 (sql): Aggregate over a stream does not work after a branch",
        ),
        *((
            (Sql("SELECT n, count(*) AS c FROM input GROUP BY n", name="a"), Sql(query)),
            (Parquet("/tmp/t", from_="a"), Parquet("/tmp/u", name="more")),
            f"step 2 (sql): {told} over a stream does not work after a branch",
        ) for query, told in (
            ("SELECT c, count(*) AS n FROM input GROUP BY c", "Aggregate"),
            ("SELECT a.n FROM input a JOIN input b ON a.n = b.c", "Join"),
            ("SELECT n FROM input EXCEPT SELECT c FROM input", "Except"),
            ("SELECT n FROM input INTERSECT SELECT c FROM input", "Intersect"),
        )),
        *((
            (), (Parquet("/tmp/t", where=f"timestamp < {clock}"),),
            f"sink 1 (parquet): where: 'timestamp < {clock}' selects different rows each time: remove now()",
        ) for clock in ("now()", "current_timestamp()", "current_date()", "date_add(current_date(), 1)")),
    ],
)  # fmt: skip
def test_what_cannot_work_on_a_branch_is_told(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, steps: Any, sinks: Any, told: str
) -> None:
    add_orders(stream_redis, 1)
    with pytest.raises(PipelineInvalid) as caught:
        pipeline_of(*steps, sinks=sinks).validate(spark)
    assert caught.value.problems[0].startswith(told)


def test_a_branch_may_join_what_is_no_stream_and_read_the_trunk_twice(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    prices = "(SELECT id, count(*) AS c FROM range(5) GROUP BY id)"
    query = f"SELECT i.n FROM input i JOIN {prices} p ON i.n = p.id UNION ALL SELECT n FROM input WHERE n <> 'now()'"
    sinks = (
        Parquet(str(tmp_path / "t"), from_="a", where="string(n) <> 'now()'"),
        Parquet(str(tmp_path / "u"), name="u"),
    )
    counted = Sql("SELECT n, count(*) AS c FROM input GROUP BY n", name="a")
    pipeline_of(counted, Sql(query), sinks=sinks, output_mode="update").validate(spark)


def test_rules_count_warn_and_give_rows_up(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    add_orders(stream_redis, 10)
    stream_redis.xadd("orders", {"data": "{no json"})
    rules = (Rule("n % 3 <> 0", name="no threes"), Rule("n < 8", "warn"))
    events: list[Event] = []
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        report = run(pipeline_of(rules=rules), on_event=events.append)
    assert table() == [1, 2, 4, 5, 7, 8]
    assert report.last is not None
    assert report.last.broken == {"decode_error": 1, "no threes": 4, "n < 8": 2}
    assert sorted(letter["dlq_reason"] for letter in dead_letters(stream_redis)) == ["decode_error", *["invalid"] * 4]
    assert report.alarms == ["batch 0: 2 rows violate the rule 'n < 8'"]
    told = [(event.name, event.fields.get("rule"), event.fields.get("count")) for event in events]
    assert told == [
        (EventName.BATCH_COMMITTED, None, None),
        (EventName.RULE_BROKEN, "decode_error", 1),
        (EventName.RULE_BROKEN, "no threes", 4),
        (EventName.RULE_BROKEN, "n < 8", 2),
        (EventName.STOPPED, None, None),
    ]


def test_a_rule_that_fails_ends_the_run_before_anything_is_written(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, table: Table
) -> None:
    add_orders(stream_redis, 10)
    with pytest.raises(PipelineFailed, match="violates the rule 'small', whose action is fail"):
        run(pipeline_of(rules=Rule("n < 9", "fail", "small")))
    assert table() == []
    assert dead_letters(stream_redis) == []


def test_rows_go_to_streams_by_a_condition(stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce) -> None:
    add_orders(stream_redis, 10)
    sinks = (RedisStreams("small", where="n < 4"), RedisStreams("large", where="n >= 4", name="large"))
    run(pipeline_of(Sql("SELECT n FROM input"), sinks=sinks))
    found = {name: [json.loads(f[b"data"])["n"] for _, f in stream_redis.xrange(name)] for name in ("small", "large")}
    assert {name: sorted(values) for name, values in found.items()} == {
        "small": [0, 1, 2, 3],
        "large": [4, 5, 6, 7, 8, 9],
    }
