"""Batch queries: which entries, which columns, and what a user is told who asks for something else."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pytest
import redis
from pyspark.errors import AnalysisException, PySparkException

from penstock.redis.embedded import EmbeddedServer
from penstock.sync import ConsumerGroup, StreamClient, StreamConsumer, StreamProducer
from tests.helpers.threads import eventually
from tests.spark.end_to_end.queries import FORMAT, START_MS, column, entry_id, fill, numbers, read
from tests.sync.stage import GROUP, Recorder, calls, fail, quick, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
SECRET = "swordfish"


@pytest.fixture
def table(spark: SparkSession, stream_server: EmbeddedServer) -> Read:
    def made(streams: str = "orders", schema: str | None = "data string", **options: Any) -> DataFrame:
        return read(spark, stream_server.url, streams, schema, **options)

    return made


# --- which streams, and what of them ----------------------------------------------------------------


def test_all_columns_of_an_entry(spark: SparkSession, stream_server: EmbeddedServer, table: Read) -> None:
    with StreamClient.from_url(stream_server.url) as client:
        made = StreamProducer(client, "orders").push({"n": 1}, message_id="m-1", key="k", headers={"tenant": "ü"})
    [row] = table(schema=None).collect()
    ms, seq = map(int, made.split("-"))
    assert (row.stream, row.id, row.ms, row.seq) == ("orders", made, ms, seq)
    assert row.timestamp.astimezone(dt.UTC) == dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    assert (json.loads(row.data), row.key, row.headers, row.message_id) == ({"n": 1}, "k", {"tenant": "ü"}, "m-1")
    assert bytes(row.fields["data"]) == bytes(row.data)


def test_one_stream_many_streams_and_those_of_a_pattern(stream_redis: redis.Redis, table: Read) -> None:
    fill(stream_redis, "orders:eu", 3)
    fill(stream_redis, "orders:us", 2, first=3)
    fill(stream_redis, "payments", 1, first=5)
    stream_redis.set("orders:note", "no stream")
    assert column(table("orders:eu")) == numbers(3)
    assert column(table("orders:eu, payments")) == [*numbers(3), "5"]
    assert column(table("orders:*")) == numbers(5)
    rows = table("orders:*", "stream string, data string").groupBy("stream").count().collect()
    assert {row["stream"]: row["count"] for row in rows} == {"orders:eu": 3, "orders:us": 2}
    assert column(table("none:*")) == []


def test_the_words_of_the_kafka_source_are_understood(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    fill(stream_redis, "orders", 4)
    fill(stream_redis, "other", 1)
    reader = spark.read.format(FORMAT).schema("data string").option("url", stream_server.url)
    assert column(reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()) == numbers(4)
    by_pattern = spark.read.format(FORMAT).schema("data string").option("url", stream_server.url)
    assert column(by_pattern.option("subscribePattern", "ord.*").load()) == numbers(4)
    by_path = spark.read.format(FORMAT).schema("data string").option("url", stream_server.url)
    assert column(by_path.load("orders")) == numbers(4)


def test_a_job_for_kafka_finds_its_columns(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    stream_redis.xadd("orders", {"data": '{"n": 7}', "key": "k", "headers": '{"h": "1"}'}, "1700000000000-5")
    options = {"url": stream_server.url, "subscribe": "orders", "columns": "kafka", "includeHeaders": "true"}
    rows = spark.read.format(FORMAT).options(**options).load()
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    query = "cast(key as string) key", "cast(value as string) value", "topic", "partition", "offset", "headers.key[0] h"
    assert rows.selectExpr(*query).collect() == [("k", '{"n": 7}', "orders", 0, (1_700_000_000_000 << 20) + 5, "h")]
    decoded = spark.read.format(FORMAT).options(**options, payload="json", payloadSchema="n bigint")
    assert decoded.schema("n bigint, offset bigint").load().collect() == [(7, (1_700_000_000_000 << 20) + 5)]
    plain = spark.read.format(FORMAT).options(url=stream_server.url, streams="orders").schema("value binary")
    with pytest.raises(PySparkException, match=r"unknown column 'value'.*columns=kafka"):
        plain.load().collect()


@pytest.mark.slow
def test_a_long_read_takes_all_cores_of_the_session(
    spark: SparkSession, stream_redis: redis.Redis, table: Read
) -> None:
    for _ in range(60):
        pipe = stream_redis.pipeline(transaction=False)
        for n in range(1_000):
            pipe.xadd("orders", {"data": str(n)})
        pipe.execute()
    cores = spark.sparkContext.defaultParallelism
    assert abs(table().rdd.getNumPartitions() - cores) <= 1
    assert table(minPartitions=1).rdd.getNumPartitions() == 1
    assert table().count() == 60_000


def test_a_stream_can_be_a_view_in_sql(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    fill(stream_redis, "orders", 4)
    options = f"url '{stream_server.url}', streams 'orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kept USING redis_streams OPTIONS ({options})")
    assert column(spark.sql("SELECT cast(data AS string) data FROM kept WHERE id > '0'")) == numbers(4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, numbers(10)),
        ({"startingOffsets": entry_id(4)}, numbers(4, 10)),
        ({"startingOffsets": f"({entry_id(4)}"}, numbers(5, 10)),
        ({"endingOffsets": entry_id(4)}, numbers(5)),
        ({"startingOffsets": entry_id(2), "endingOffsets": entry_id(4)}, numbers(2, 5)),
        ({"startingOffsets": {"orders": entry_id(7)}, "endingOffsets": {"orders": entry_id(8)}}, numbers(7, 9)),
        ({"startingTimestamp": START_MS + 6}, numbers(6, 10)),
        ({"startingTimestamp": START_MS + 2, "endingTimestamp": START_MS + 5}, numbers(2, 5)),
        ({"endingTimestamp": "2023-11-14T22:13:20.003Z"}, numbers(3)),
        ({"startingOffsets": "0-0", "endingOffsets": "18446744073709551615-0"}, numbers(10)),
    ],
    ids=str,
)
def test_a_part_of_a_stream(
    stream_redis: redis.Redis, table: Read, options: dict[str, Any], expected: list[str]
) -> None:
    fill(stream_redis, "orders", 10)
    assert column(table(**options)) == expected


def test_streams_that_are_not_in_the_json_are_read_whole(stream_redis: redis.Redis, table: Read) -> None:
    fill(stream_redis, "a", 5)
    fill(stream_redis, "b", 5, first=5)
    rows = table("a,b", startingOffsets={"a": entry_id(3)}, endingOffsets={"b": entry_id(6)})
    assert column(rows) == numbers(3, 7)


def test_entries_that_arrive_after_the_plan_are_not_read(stream_redis: redis.Redis, table: Read) -> None:
    fill(stream_redis, "orders", 5)
    rows = table().persist()
    assert rows.count() == 5
    fill(stream_redis, "orders", 5, first=5)
    assert rows.count() == 5


def test_several_partitions_share_the_stream(stream_redis: redis.Redis, table: Read) -> None:
    fill(stream_redis, "orders", 2_000)
    rows = table(minPartitions=4)
    assert rows.rdd.getNumPartitions() >= 4
    parts = rows.selectExpr("spark_partition_id() part", "data").collect()
    sizes = [sum(row.part == part for row in parts) for part in {row.part for row in parts}]
    assert len(sizes) >= 4
    assert max(sizes) < 1_000
    assert sorted(int(row.data) for row in parts) == list(range(2_000))


def test_many_small_streams_share_a_partition(stream_redis: redis.Redis, table: Read) -> None:
    for n in range(50):
        fill(stream_redis, f"s:{n}", 2, first=2 * n)
    rows = table("s:*")
    assert rows.rdd.getNumPartitions() == 1
    assert column(rows) == numbers(100)


# --- columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("id string", (entry_id(0),)),
        ("data binary, stream string", (bytearray(b"0"), "orders")),
        ("seq bigint, data string, ms bigint", (0, "0", START_MS)),
        ("fields map<string,string>, key string", ({"data": "0"}, None)),
        ("headers map<string,string>, fields map<string,binary>", ({}, {"data": bytearray(b"0")})),
        ("timestamp timestamp_ntz", (dt.datetime(2023, 11, 14, 22, 13, 20),)),  # noqa: DTZ001
    ],
)
def test_the_schema_chooses_columns_in_any_order(
    stream_redis: redis.Redis, table: Read, schema: str, expected: tuple[Any, ...]
) -> None:
    fill(stream_redis, "orders", 1)
    rows = table(schema=schema)
    assert rows.schema.simpleString() == f"struct<{schema.replace(', ', ',').replace(' ', ':')}>"
    assert [tuple(row) for row in rows.collect()] == [expected]


# --- filters ----------------------------------------------------------------------------------------


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Spark asks its Python sources about filters."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def pages(stream_redis: redis.Redis, rows: DataFrame) -> tuple[list[str], int]:
    """Returns what a query finds, and how many XRANGE commands it takes."""
    stream_redis.config_resetstat()
    found = column(rows)
    return found, calls(stream_redis, "xrange")


@pytest.mark.parametrize(
    ("condition", "expected", "most"),
    [
        (f"ms >= {START_MS + 480} and stream = 'orders'", numbers(480, 500), 8),
        (f"ms > {START_MS + 480} and ms <= {START_MS + 490}", numbers(481, 491), 6),
        (f"ms = {START_MS + 7}", ["7"], 4),
        ("timestamp < timestamp'2023-11-14T22:13:20.020Z'", numbers(20), 8),
        ("stream = 'other' and ms < 0", [], 0),
    ],
)
def test_filters_on_time_and_stream_are_read_less_of(
    stream_redis: redis.Redis, table: Read, pushing: None, condition: str, expected: list[str], most: int
) -> None:
    fill(stream_redis, "orders", 500)
    fill(stream_redis, "other", 1, first=1_000)
    rows = table("orders,other", "stream string, ms bigint, timestamp timestamp, data string",
                 filterPushdown=True, fetchSize=10)  # fmt: skip
    found, taken = pages(stream_redis, rows.where(condition))
    assert found == expected
    assert taken <= most


def test_a_filter_on_streams_leaves_the_others_alone(stream_redis: redis.Redis, table: Read, pushing: None) -> None:
    fill(stream_redis, "orders", 500)
    fill(stream_redis, "other", 3)
    rows = table("orders,other", "stream string, data string", filterPushdown=True, fetchSize=10)
    assert pages(stream_redis, rows.where("stream in ('other', 'unknown')")) == (numbers(3), 2)


def test_filters_on_ids_are_never_pushed_since_spark_compares_texts(
    stream_redis: redis.Redis, table: Read, pushing: None
) -> None:
    for seq in range(1, 12):
        stream_redis.xadd("orders", {"data": seq}, f"{START_MS}-{seq}")
    rows = table(schema="id string, data string", filterPushdown=True)
    # As texts, ...-10 and ...-11 come before ...-9.
    assert column(rows.where(f"id >= '{START_MS}-9'")) == ["9"]
    assert column(rows.where(f"id < '{START_MS}-2'")) == ["1", "10", "11"]
    assert column(rows.where(f"id = '{START_MS}-10'")) == ["10"]


def test_without_the_option_a_filter_reads_everything_and_finds_the_same(
    stream_redis: redis.Redis, table: Read, pushing: None
) -> None:
    fill(stream_redis, "orders", 100)
    rows = table(schema="ms bigint, data string", fetchSize=10)
    found, taken = pages(stream_redis, rows.where(f"ms >= {START_MS + 98}"))
    assert found == numbers(98, 100)
    assert taken >= 10


# --- views ------------------------------------------------------------------------------------------


def test_dead_letters_are_a_table(stream_server: EmbeddedServer, table: Read) -> None:
    with StreamClient.from_url(stream_server.url) as client:
        made = StreamProducer(client, "orders").push({"n": 1}, message_id="m-1", key="k")
        consumer = StreamConsumer(
            client, "orders", quick(worker_name="w-1", max_deliveries=2, handle_signals=False), Recorder(fail)
        )
        with running(consumer):
            eventually(lambda: consumer.metrics().total_dlq == 1)
    [row] = table(schema=None, view="dead_letters").collect()
    assert (row.source_stream, row.source_id, row.group, row.consumer) == ("orders", made, GROUP, "w-1")
    assert (row.reason, row.error, row.error_text) == ("max_deliveries", "ValueError", "this cannot be handled")
    assert row.traceback.startswith("Traceback")
    assert row.traceback.endswith("ValueError: this cannot be handled\n")
    assert row.cut is None
    assert (row.attempts, row.deliveries, row.message_id, row.key) == (2, 2, "m-1", "k")
    assert json.loads(row.data) == {"n": 1}
    assert row.dead_at >= row.timestamp - dt.timedelta(seconds=10)
    decoded = table(schema="reason string, n bigint", view="dead_letters", payload="json", payloadSchema="n bigint")
    assert [tuple(row) for row in decoded.collect()] == [("max_deliveries", 1)]


def test_pending_messages_are_a_table(stream_redis: redis.Redis, stream_server: EmbeddedServer, table: Read) -> None:
    fill(stream_redis, "orders", 5)
    with StreamClient.from_url(stream_server.url) as client:
        ConsumerGroup(client, "orders", GROUP).ensure()
    stream_redis.xreadgroup(GROUP, "w-1", {"orders": ">"}, count=3)
    rows = table(schema=None, view="pending", group=GROUP).orderBy("id").collect()
    assert [(row.stream, row.group, row.id, row.consumer, row.deliveries) for row in rows] == [
        ("orders", GROUP, entry_id(n), "w-1", 1) for n in range(3)
    ]
    assert [row.ms for row in rows] == [START_MS + n for n in range(3)]
    assert min(row.idle_ms for row in rows) >= 0
    assert table(schema="consumer string", view="pending", group=GROUP).distinct().count() == 1


# --- payloads ---------------------------------------------------------------------------------------

ORDER = {"number": 1, "customer": "ada", "total": 2.5}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": ["null", "double"], "default": None},
    ],
}
DDL = "number bigint, customer string, total double"


def _avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


@pytest.mark.parametrize(
    ("encode", "options"),
    [
        (lambda value: json.dumps(value).encode(), {"payload": "json"}),
        (msgspec.msgpack.encode, {"payload": "msgpack"}),
        (_avro, {"payload": "avro", "avroSchema": AVRO}),
    ],
    ids=["json", "msgpack", "avro"],
)
def test_fields_of_the_payload_are_columns(
    stream_redis: redis.Redis, table: Read, encode: Callable[[Any], bytes], options: dict[str, Any]
) -> None:
    stream_redis.xadd("orders", {"data": encode(ORDER)})
    stream_redis.xadd("orders", {"data": encode({**ORDER, "number": 2, "total": None})})
    expected = [(1, "ada", 2.5), (2, "ada", None)]
    given = table(schema=None, payloadSchema=DDL, **options).select("number", "customer", "total").orderBy("number")
    inferred = table(schema=None, **options).select("number", "customer", "total").orderBy("number")
    chosen = table(schema="customer string, id string, number bigint", **options).orderBy("number")
    assert [tuple(row) for row in given.collect()] == expected
    assert [tuple(row) for row in inferred.collect()] == expected
    assert [(row.customer, row.number) for row in chosen.collect()] == [("ada", 1), ("ada", 2)]


def test_a_model_gives_the_columns(stream_redis: redis.Redis, table: Read) -> None:
    stream_redis.xadd("orders", {"data": json.dumps(ORDER)})
    rows = table(schema=None, payload="json", payloadModel="tests.spark.end_to_end.orders:Order")
    assert [tuple(row) for row in rows.select("number", "customer", "total").collect()] == [(1, "ada", 2.5)]
    assert dict(rows.dtypes)["number"] == "bigint"


def test_the_payload_can_be_one_column(stream_redis: redis.Redis, table: Read) -> None:
    stream_redis.xadd("orders", {"data": json.dumps(ORDER | {"id": 7})})
    rows = table(schema=None, payload="json", payloadColumn="payload", payloadSchema=f"{DDL}, id bigint")
    assert [tuple(row) for row in rows.select("payload.number", "payload.id").collect()] == [(1, 7)]


def test_another_field_can_hold_the_payload(stream_redis: redis.Redis, table: Read) -> None:
    stream_redis.xadd("orders", {"data": "no json", "body": json.dumps(ORDER)})
    rows = table(schema=None, payload="json", payloadField="body", payloadSchema=DDL)
    assert column(rows, "customer") == ["ada"]


def test_what_cannot_be_decoded_is_kept_dropped_or_stops_the_query(stream_redis: redis.Redis, table: Read) -> None:
    stream_redis.xadd("orders", {"data": json.dumps(ORDER)})
    bad = stream_redis.xadd("orders", {"data": "{broken"}).decode()
    options = {"schema": None, "payload": "json", "payloadSchema": DDL}
    kept = table(**options).select("number", "_corrupt_record", "_corrupt_reason").orderBy("id").collect()
    assert [row.number for row in kept] == [1, None]
    assert [row._corrupt_record for row in kept] == [None, "{broken"]
    assert kept[0]._corrupt_reason is None
    assert kept[1]._corrupt_reason
    assert column(table(mode="DROPMALFORMED", **options), "number") == [1]
    with pytest.raises(PySparkException, match=rf"entry {bad} of stream 'orders': .*FAILFAST"):
        table(mode="FAILFAST", **options).collect()


# --- what a user is told ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("streams", "schema", "options", "told"),
    [
        ("nowhere", "data string", {}, "stream 'nowhere' does not exist in Redis at"),
        ("orders", "data string, color string", {}, "unknown column 'color'; a stream has stream, id,"),
        ("orders", "data double", {}, "column 'data' cannot be double; it is binary or string"),
        ("orders", None, {"startingOffset": "earliest"}, "unknown option 'startingoffset'.*did you mean startingOffsets"),
        ("orders", "data string", {"startingOffsets": "soon"}, "must be earliest, latest, group or an id"),
        ("orders", "data string", {"startingOffsets": "latest"}, "reads nothing in a batch query"),
        ("orders", "data string", {"maxRowsPerTrigger": 5}, "applies only to streaming queries"),
        ("orders", "data string", {"startingOffsets": "0-0", "startingTimestamp": 1}, "not both"),
        ("orders", "data string", {"subscribePattern": "o.*"}, "exactly one of them"),
        ("orders", "data string", {"view": "pending"}, "set option group"),
        ("orders", None, {"payload": "json", "payloadModel": "no.such:Thing"}, "model 'no.such:Thing' cannot be imported"),
        ("orders", None, {"payload": "json", "payloadSchema": "id bigint"}, "set option payloadColumn='payload'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_any_task_starts(
    spark: SparkSession, stream_redis: redis.Redis, table: Read, streams: str, schema: str | None,
    options: dict[str, Any], told: str,
) -> None:  # fmt: skip
    fill(stream_redis, "orders", 1)
    with no_task(spark), pytest.raises(PySparkException, match=told):
        table(streams, schema, **options).collect()


def test_a_server_that_cannot_be_reached_is_named_without_its_password(spark: SparkSession) -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:1/0"
    with no_task(spark), pytest.raises(PySparkException, match=r"127\.0\.0\.1:1") as raised:
        read(spark, url, "orders", retryTimeout="0s", **{"redis.password": f"{SECRET}-2"}).collect()
    assert SECRET not in str(raised.value)


def test_a_wrong_password_is_told_without_the_password(spark: SparkSession, stream_server: EmbeddedServer) -> None:
    url = stream_server.url.replace("redis://", f"redis://nobody:{SECRET}@")
    with no_task(spark), pytest.raises(PySparkException, match=r"WRONGPASS|refused|password") as raised:
        read(spark, url, "orders", retryTimeout="0s").collect()
    assert SECRET not in str(raised.value)


def test_a_missing_url_is_told(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="option url is missing: set it to the Redis server"):
        spark.read.format(FORMAT).option("streams", "orders").load()


class no_task:  # noqa: N801  # reads as words
    """Checks that no task of Spark runs in the block."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __enter__(self) -> None:
        self._before = self._next_stage()

    def __exit__(self, *_: object) -> None:
        assert self._next_stage() == self._before

    def _next_stage(self) -> int:
        return int(self._spark._jsc.sc().dagScheduler().nextStageId())
