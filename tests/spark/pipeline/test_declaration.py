"""A pipeline is a checked value, and a mistake in its file is told with its place. Nothing here needs Spark."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.pipeline import (
    Console,
    Delta,
    Function,
    Handler,
    Iceberg,
    Jdbc,
    Parquet,
    Pipeline,
    Postgres,
    RedisStreams,
    Results,
    Rule,
    Source,
    Sql,
)
from penstock.spark.pipeline.reset import plan_reset
from penstock.spark.pipeline.status import status

GOOD = """\
name = "orders"
checkpoint = "/data/checkpoints/orders"
watermark = "10 minutes"
dedup = "message_id"
trigger = "5s"

[source]
url = "redis://localhost:6379"
streams = ["orders", "returns"]
schema = "order_id bigint NOT NULL, total double"
valid = ["total >= 0"]
max_rows_per_batch = 1000

[source.options]
waitForStreams = true

[[step]]
handler = "shop.work:handle"
output = "score double"

[[step]]
sql = "SELECT order_id, total FROM input WHERE total > 10"
name = "big"

[[step]]
python = "shop.frames:clean"

[[sink]]
kind = "parquet"
path = "/data/orders"
partition_by = ["day"]

[[sink]]
kind = "redis_streams"
stream = "big_orders"

[[sink]]
kind = "postgres"
dsn = "postgresql://localhost/shop"
table = "public.orders"
key = ["order_id"]

[[sink]]
kind = "console"
"""


def test_a_file_and_python_declare_the_same_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(GOOD)
    source = Source(
        url="redis://localhost:6379",
        streams=("orders", "returns"),
        schema="order_id bigint NOT NULL, total double",
        valid=("total >= 0",),
        max_rows_per_batch=1000,
        options={"waitForStreams": "true"},
    )
    assert Pipeline.from_file(file) == Pipeline(
        name="orders",
        source=source,
        steps=(
            Handler("shop.work:handle", output="score double"),
            Sql("SELECT order_id, total FROM input WHERE total > 10", name="big"),
            Function("shop.frames:clean"),
        ),
        sinks=(
            Parquet("/data/orders", partition_by=("day",)),
            RedisStreams("big_orders"),
            Postgres("postgresql://localhost/shop", "public.orders", key=("order_id",)),
            Console(),
        ),
        checkpoint="/data/checkpoints/orders",
        watermark="10 minutes",
        dedup=("message_id",),
        trigger="5s",
    )


@pytest.mark.parametrize(
    ("starting", "option"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ("(1700000000000-7", {"startingOffsets": "(1700000000000-7"}),
        ('{"orders": "5-0"}', {"startingOffsets": '{"orders": "5-0"}'}),
        ("2023-11-14T22:13:20Z", {"startingTimestamp": "1700000000000"}),
        ("1700000000000", {"startingTimestamp": "1700000000000"}),
    ],
)
def test_a_pipeline_starts_at_a_word_an_id_or_a_time(starting: str, option: dict[str, str]) -> None:
    made = Source(url="redis://localhost", streams=("orders",), starting=starting).spark_options()
    assert {name: value for name, value in made.items() if name.startswith("starting")} == option


def test_a_checkpoint_elsewhere_is_not_reset_but_replaced() -> None:
    pipeline = Pipeline.from_toml(GOOD.replace("/data/checkpoints", "s3a://lake"))
    with pytest.raises(
        ConfigurationError, match=r"is not on a disk of this machine: give the pipeline a new checkpoint"
    ):
        plan_reset(pipeline, "earliest", 0)
    with pytest.raises(ConfigurationError, match=r"is not on a disk of this machine: check the consumer group"):
        status(pipeline)


def test_a_pipeline_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pipeline.from_toml(GOOD).name = "other"


def test_no_address_is_shown_since_it_may_hold_a_password() -> None:
    secret = GOOD.replace("localhost", "user:hunter2@localhost")
    assert "hunter2" not in repr(Pipeline.from_toml(secret))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('trigger = "5s"', 'tigger = "5s"', "f.toml:5: tigger is unknown: did you mean 'trigger'?"),
        ("streams =", "stream =", "f.toml:9: [source] stream is unknown: did you mean 'streams'?"),
        ("partition_by", "partitionby", "f.toml:31: [sink 1] partitionby is unknown: did you mean 'partition_by'?"),
        ('kind = "console"', 'kind = "konsole"', "f.toml:44: [sink 4] kind='konsole' must be one of parquet,"),
        ('kind = "console"', "", "f.toml:43: [sink 4] needs the key 'kind'"),
        ('sql = "SELECT', 'sequel = "SELECT', "f.toml:22: [step 2] sequel is unknown: did you mean 'sql'?"),
        ('python = "shop', 'sql = "x"\npython = "shop', "f.toml:25: [step 3] needs one of the keys sql, python, handler"),
        ("shop.frames:clean", "shop.frames.clean", "f.toml:25: [step 3]: python='shop.frames.clean' must be written as"),
        ("score double", "score dubble", "f.toml:17: [step 1]: schema 'score dubble'"),
        ('name = "big"', 'name = "input"', "f.toml:21: [step 2]: name='input' must be a valid SQL table name"),
        ("bigint NOT NULL,", "bigint NUT NULL,", "f.toml:7: [source]: schema 'order_id bigint NUT NULL"),
        ("max_rows_per_batch = 1000", "max_rows_per_batch = 0", "f.toml:12: [source] max_rows_per_batch=0 must be 1 or more"),
        ("max_rows_per_batch = 1000", 'max_rows_per_batch = "x"', "f.toml:12: [source] max_rows_per_batch='x' must be a whole number"),
        ("max_rows_per_batch = 1000", "dead_letter_limits = { max_age = 5 }", "f.toml:12: [source] dead_letter_limits: DeadLetterLimits has no"),
        ("max_rows_per_batch = 1000", "dead_letter_limits = 7", "f.toml:12: [source] dead_letter_limits: dead_letter_limits must be"),
        ("waitForStreams = true", "waitForStream = true", "unknown option 'waitforstream'"),
        ("waitForStreams = true", "mode = 'FAILFAST'", "options.mode is set by the pipeline"),
        ("waitForStreams = true", "columns = 'kafka'", "options.columns is set by the pipeline"),
        ("waitForStreams = true", "payloadSchema = 'a int'", "options.payloadSchema: set schema = ... instead"),
        ('watermark = "10 minutes"', "", "f.toml: dedup needs a watermark"),
        ('watermark = "10 minutes"', 'watermark = "soon"', "watermark='soon' must be a duration"),
        ('checkpoint = "/data/checkpoints/orders"', "", "f.toml needs the key 'checkpoint'"),
        ('checkpoint = "/data/checkpoints/orders"', "checkpoint = 3", "f.toml:2: checkpoint=3 must be a string"),
        ('kind = "console"', 'kind = "console"\nname = "parquet"', "f.toml: two sinks are named 'parquet'"),
        ('"redis://localhost:6379"', '"http://localhost"', "f.toml:7: [source]"),
        ("[source]\n", "[sauce]\n", "f.toml:7: sauce is unknown: did you mean 'source'?"),
        ('trigger = "5s"', "trigger = ", "f.toml is not valid TOML"),
        ('table = "public.orders"', "", "f.toml:37: [sink 3] needs the key 'table'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line_with_its_place(old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigurationError) as caught:
        Pipeline.from_toml(GOOD.replace(old, new, 1), "f.toml")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipeline_without_a_sink_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the pipeline has no sink"):
        Pipeline("a", Source("redis://localhost", ("a",)), (), "/tmp/a")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file"):
        Pipeline.from_file(tmp_path / "none.toml")


def test_columns_that_must_not_be_null_are_known_from_the_schema() -> None:
    pipeline = Pipeline.from_toml(GOOD)
    assert pipeline.source.required_columns() == ["`order_id`"]


def test_declaring_a_pipeline_loads_no_spark() -> None:
    code = "import sys, penstock.spark.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LAKE = """\
name = "orders"
checkpoint = "/data/checkpoints/orders"

[source]
url = "redis://localhost:6379"
streams = "orders"

[[sink]]
kind = "delta"
path = "s3a://lake/orders"
options.AWS_REGION = "eu-central-1"

[[sink]]
kind = "iceberg"
table = "shop.orders"
partition_by = "day"
catalog = { type = "rest", uri = "https://catalogue", token = "hunter2" }

[[sink]]
kind = "jdbc"
url = "jdbc:mysql://db/shop?password=hunter2"
table = "orders"
key = "order_id"
options.fetchsize = 100

[[sink]]
kind = "results"
id = "order_id"
result_kind = "order"
backend = "s3"
columns = ["total"]

[sink.options]
url = "s3://results/orders"
secret_access_key = "hunter2"
"""


def test_tables_catalogues_and_results_are_declared_and_show_no_secret() -> None:
    pipeline = Pipeline.from_toml(LAKE)
    assert pipeline.sinks == (
        Delta("s3a://lake/orders", options={"AWS_REGION": "eu-central-1"}),
        Iceberg("shop.orders", {"type": "rest", "uri": "https://catalogue", "token": "hunter2"}, partition_by=("day",)),
        Jdbc("jdbc:mysql://db/shop?password=hunter2", "orders", key=("order_id",), options={"fetchsize": "100"}),
        Results(
            id="order_id",
            result_kind="order",
            backend="s3",
            columns=("total",),
            options={"url": "s3://results/orders", "secret_access_key": "hunter2"},
        ),
    )
    assert "hunter2" not in repr(pipeline)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('table = "shop.orders"', 'tabel = "shop.orders"', "f.toml:15: [sink 2] tabel is unknown: did you mean 'table'?"),
        ('table = "shop.orders"', 'table = "orders"', "f.toml:13: [sink 2]: table='orders' must be namespace.name"),
        ("catalog = {", "catalog = {}  # {", "f.toml:13: [sink 2]: catalog is empty"),
        ('table = "shop.orders"', 'table = "shop.orders"\nlibrary = "spark"', "f.toml:13: [sink 2]: library = 'spark' needs spark_catalog"),
        ("catalog = {", 'library = "python"\nspark_catalog = "lake"\ncatalog = {}  # {', "f.toml:13: [sink 2]: catalog is empty"),
        ("catalog = {", 'spark_catalog = "la.ke"\ncatalog = {', "f.toml:13: [sink 2]: spark_catalog"),
        ("jdbc:mysql:", "mysql:", "f.toml:19: [sink 3]: url must start with jdbc:"),
        ("options.fetchsize", "options.dbtable", "f.toml:19: [sink 3]: options.dbtable is set by the pipeline"),
        ('result_kind = "order"', "", "f.toml:26: [sink 4] needs the key 'result_kind'"),
        ('path = "s3a', 'library = "java"\npath = "s3a', "f.toml:10: [sink 1] library='java' must be one of auto, python, spark"),
        ('path = "s3a', 'library = "spark"\npath = "s3a', "f.toml:8: [sink 1]: options apply only to library = 'python'"),
    ],
)  # fmt: skip
def test_what_cannot_work_in_them_is_told_with_its_place(old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Pipeline.from_toml(LAKE.replace(old, new), "f.toml")
    assert str(caught.value).startswith(told)


def test_python_may_give_one_text_or_a_list_where_several_can_be() -> None:
    source = Source(url="redis://localhost", streams="orders", schema="n bigint", valid="n > 0", columns=["id"])
    assert (source.streams, source.valid, source.columns) == (("orders",), ("n > 0",), ("id",))
    pipeline = Pipeline(
        name="p",
        source=source,
        steps=Sql("SELECT n FROM input"),
        sinks=Parquet("/t", partition_by="day"),
        checkpoint="/c",
        dedup=["n"],
        watermark="1m",
    )
    assert pipeline.steps == (Sql("SELECT n FROM input"),)
    assert pipeline.sinks == (Parquet("/t", partition_by=("day",)),)
    assert pipeline.dedup == ("n",)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Parquet("/t", partition_by=7), "partition_by=7 must be a list"),
        (lambda: made(sinks=["parquet"]), "sinks: 'parquet' is not one of Parquet, Delta,"),
        (lambda: made(steps="SELECT 1"), "steps: 'SELECT 1' is not one of Sql, Function, Handler"),
        (lambda: made(max_lag=-1), "max_lag=-1 must be 0 or more"),
        (lambda: made(watermark_column="at"), "watermark_column='at' needs a watermark"),
        (lambda: made(rules=[Rule("n > 0", name="r"), Rule("n < 9", name="r")]), "two rules are named 'r': give each"),
        (lambda: made(rules=Rule("n > 0", name="decode_error")), "two rules are named 'decode_error'"),
        (
            lambda: Source(url="redis://h", streams=["a*", "b"]),
            "streams=['a*', 'b'] must be stream names, or a single glob",
        ),
    ],
)
def test_python_that_gives_something_else_is_told(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        make()


def made(**given: Any) -> Pipeline:
    source = Source(url="redis://localhost", streams="orders", schema="n bigint")
    return Pipeline(**{"name": "p", "source": source, "sinks": Parquet("/t"), "checkpoint": "/c", **given})


def test_settings_with_dots_need_no_quotes() -> None:
    text = """
        name = "p"
        checkpoint = "/c"
        [spark]
        spark.executor.memory = "2g"
        "spark.executor.cores" = 2
        [source]
        url = "redis://localhost"
        streams = "orders"
        [[sink]]
        kind = "console"
    """
    assert Pipeline.from_toml(text).spark == {"spark.executor.memory": "2g", "spark.executor.cores": "2"}
