from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.source.options import Bound, SourceOptions

URL = "redis://user:s3cret@localhost:6379"


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse(
        {"url": URL, "streams": "orders"} | {name.replace("__", "."): value for name, value in options.items()}
    )


def test_the_defaults() -> None:
    options = parse()
    assert options.selection.names == ("orders",)
    assert (options.view, options.fail_on_data_loss, options.group, options.streaming_partitions) == (
        "entries",
        True,
        None,
        1,
    )


def test_names_are_case_insensitive_as_spark_hands_them_over() -> None:
    assert parse(maxrowspertrigger="5", STARTINGOFFSETS="Latest").starting == Bound(common="latest")


@pytest.mark.parametrize(
    ("alias", "value", "attribute", "expected"),
    [
        ("maxOffsetsPerTrigger", "5", "max_rows", 5),
        ("maxRecordsPerTrigger", "5", "max_rows", 5),
        ("minOffsetsPerTrigger", "5", "min_rows", 5),
        ("maxRecordsPerPartition", "5", "max_rows_per_partition", 5),
        ("minPartitions", "5", "min_partitions", 5),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("maxTriggerDelay", "15m", "max_trigger_delay", timedelta(minutes=15)),
        ("maxTriggerDelay", "10 minutes", "max_trigger_delay", timedelta(minutes=10)),
        ("maxTriggerDelay", "500ms", "max_trigger_delay", timedelta(milliseconds=500)),
        ("startingTimestamp", "1700000000000", "starting", Bound(ms=1700000000000)),
        ("startingTimestamp", "2023-11-14T22:13:20Z", "starting", Bound(ms=1700000000000)),
        (
            "startingOffsets",
            '{"orders":"5-1","b":"latest"}',
            "starting",
            Bound(by_stream={"orders": "5-1", "b": "latest"}),
        ),
        (
            "startingOffsets",
            '{"orders": {"id": "5-1", "n": 7}, "b": {"id": "6-0"}}',
            "starting",
            Bound(by_stream={"orders": "(5-1", "b": "(6-0"}, ranks={"orders": 7}),
        ),
        ("startingOffsets", "17", "starting", Bound(common="17-0")),
        ("endingOffsets", "(17-3", "ending", Bound(common="(17-3")),
    ],
)
def test_names_that_users_of_kafka_know(alias: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(parse(**{alias: value}), attribute) == expected


@pytest.mark.parametrize("name", ["streams", "stream", "subscribe", "path"])
def test_streams_by_any_name(name: str) -> None:
    options = SourceOptions.parse({"url": URL, name: " a, b ,a"})
    assert options.selection.names == ("a", "b")


def test_patterns() -> None:
    assert SourceOptions.parse({"url": URL, "streams": "orders:*"}).selection.glob == "orders:*"
    assert SourceOptions.parse({"url": URL, "subscribePattern": "orders.*"}).selection.regex == "orders.*"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": "a"}, "option url is missing"),
        ({"url": URL}, "name the streams"),
        ({"url": URL, "streams": "a", "subscribePattern": "b"}, "exactly one"),
        ({"url": URL, "streams": " , "}, "option streams must not be empty"),
        ({"url": URL, "streams": "a", "subscribe": "b"}, "streams and subscribe mean the same"),
        ({"url": URL, "subscribePattern": "("}, "not a regular expression"),
        ({"url": "http://x", "streams": "a"}, "redis"),
        ({"url": "embedded://", "streams": "a"}, "embedded"),
        ({"url": URL, "streams": "a", "maxRowsPerTriger": "5"}, "did you mean maxRowsPerTrigger"),
        ({"url": URL, "streams": "a", "maxRowsPerTrigger": "many"}, "must be a whole number"),
        ({"url": URL, "streams": "a", "maxRowsPerTrigger": "0"}, "at least 1"),
        ({"url": URL, "streams": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"url": URL, "streams": "a", "columns": "mine"}, "must be one of redis, kafka"),
        (
            {"url": URL, "streams": "a", "columns": "kafka", "view": "dead_letters"},
            "remove it with view=dead_letters",
        ),
        ({"url": URL, "streams": "a", "startingOffsets": "yesterday"}, "earliest, latest, group or an id"),
        ({"url": URL, "streams": "a", "startingOffsets": "{"}, "not valid JSON"),
        ({"url": URL, "streams": "a", "startingOffsets": "latest", "startingTimestamp": "5"}, "not both"),
        ({"url": URL, "streams": "a", "startingTimestamp": "soon"}, "milliseconds since 1970"),
        ({"url": URL, "streams": "a", "startingOffsets": "group"}, "option group"),
        ({"url": URL, "streams": "a", "view": "graveyard"}, "entries, dead_letters, pending"),
        ({"url": URL, "streams": "a", "view": "pending"}, "option group"),
        (
            {"url": URL, "streams": "a", "minRowsPerTrigger": "9", "maxRowsPerTrigger": "3"},
            "must not exceed maxRowsPerTrigger",
        ),
        ({"url": URL, "streams": "a", "payloadSchema": "a int"}, "payload=json"),
        ({"url": URL, "streams": "a", "payload": "xml"}, "raw, json, msgpack, avro"),
        ({"url": URL, "streams": "a", "maxTriggerDelay": "long"}, "must be a duration"),
        ({"url": URL, "streams": "a", "passwordEnv": "PENSTOCK_NO_SUCH_VARIABLE"}, "is not set"),
        ({"url": URL, "streams": "a", "passwordFile": "/no/such/file"}, "passwordFile"),
        ({"url": URL, "streams": "a", "redis.socket_timeout": "long"}, "must be a number"),
        ({"url": URL, "streams": "a", "redis.ssl_check_hostname": "yes"}, "must be true or false"),
        ({"url": URL, "streams": "a", "provider": "redis_streams"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_wrong_options_are_told_and_no_secret_is(options: dict[str, str], words: str) -> None:
    with pytest.raises(PenstockError, match=words) as caught:
        SourceOptions.parse(options)
    assert "s3cret" not in str(caught.value)


def test_options_of_the_wrong_kind_of_query() -> None:
    with pytest.raises(ConfigurationError, match="readStream"):
        parse(maxRowsPerTrigger="5").check_batch()
    with pytest.raises(ConfigurationError, match="reads nothing"):
        parse(startingOffsets="latest").check_batch()
    with pytest.raises(ConfigurationError, match="has no end"):
        parse(endingOffsets="5-0").check_streaming()
    with pytest.raises(ConfigurationError, match="snapshot"):
        parse(view="pending", group="g").check_streaming()


def test_options_travel_to_the_tasks_and_their_text_shows_no_secret() -> None:
    options = parse(redis__password="0ther")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "s3cret" not in repr(options)
    assert "0ther" not in repr(options)


def test_a_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_PASSWORD", "hidden")
    client = SourceOptions.parse(
        {"url": "redis://localhost", "streams": "a", "passwordEnv": "QUEUE_PASSWORD"}
    ).link.client()
    assert client.settings.password == "hidden"


def test_options_of_the_client_have_its_types() -> None:
    options = SourceOptions.parse({"url": URL, "streams": "a", "redis.db": "3", "redis.socket_timeout": "0.5"})
    settings = options.link.client().settings
    assert (settings.db, settings.socket_timeout_s) == (3, 0.5)
