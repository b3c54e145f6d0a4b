"""What cannot work is refused where it is written, with an error that says what is wrong and what to do."""

from __future__ import annotations

import datetime as dt
import functools
import math
from typing import Any

import pytest
import redis.asyncio

import penstock
import penstock.ops
import penstock.sync.ops
import penstock.sync.tasks
import penstock.tasks
from penstock import (
    ConsumerConfig,
    ConsumerGroup,
    DeadLetters,
    JsonSerializer,
    MsgpackSerializer,
    PickleSerializer,
    RedisGateway,
    RedisMessageQueue,
    StreamClient,
    StreamConsumer,
    StreamMessage,
    errors,
    sync,
)
from penstock.errors import ConfigurationError, EncodeError, PayloadTooLarge
from penstock.task import Priority, Task, decode_task, encode
from penstock.tasks import Handlers

HALVES = [penstock, sync]
half = pytest.mark.parametrize("half", HALVES, ids=["async", "sync"])

BAD_NAMES = [
    ("", "must not be empty or blank: use a name such as 'orders'"),
    ("   ", "must not be empty or blank"),
    ("\t\n", "must not be empty or blank"),
    ("x" * 513, "has 513 bytes, more than the limit of 512"),
    ("ü" * 257, "has 514 bytes, more than the limit of 512"),
    ("a\0b", "must not contain line breaks or NUL"),
    ("a\nb", "must not contain line breaks or NUL"),
    ("a\r", "must not contain line breaks or NUL"),
    ("a\ud800", "must not contain lone surrogates"),
    (b"orders", "must be a str, not bytes"),
    (7, "must be a str, not int"),
]
bad_name = pytest.mark.parametrize(("name", "says"), BAD_NAMES, ids=lambda value: repr(value)[:20])


def consumer(half: Any, **options: Any) -> Any:
    given = {"config": ConsumerConfig(group="g"), "message_handler": lambda _message: None, **options}
    return half.StreamConsumer(half.StreamClient(), "s", **given)


# --- names ------------------------------------------------------------------------------------------


@half
@bad_name
def test_a_bad_stream_name_is_refused_by_everything_that_takes_one(half: Any, name: Any, says: str) -> None:
    client = half.StreamClient()
    for use in (
        lambda: half.StreamProducer(client, name),
        lambda: half.StreamConsumer(client, name, ConsumerConfig(group="g"), message_handler=print),
        lambda: half.ConsumerGroup(client, name, "g"),
        lambda: half.DeadLetters(client, name),
        lambda: client.keys(name),
    ):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert f"stream {says}" in str(refused.value)


@half
@bad_name
def test_a_bad_group_name_is_refused(half: Any, name: Any, says: str) -> None:
    client = half.StreamClient()
    for use in (lambda: half.StreamProducer(client, "s", name), lambda: half.ConsumerGroup(client, "s", name)):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert f"group {says}" in str(refused.value)


@bad_name
@pytest.mark.parametrize("field", ["group", "worker_name", "dlq_stream", "dlq_group"])
def test_a_bad_name_in_the_settings_is_refused(field: str, name: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ConsumerConfig(**{"group": "g", field: name})
    assert f"{field} {says}" in str(refused.value)


@half
@bad_name
def test_a_bad_prefix_is_refused(half: Any, name: Any, says: str) -> None:
    if name:  # no prefix at all is fine
        with pytest.raises(ConfigurationError) as refused:
            half.StreamClient(prefix=name).keys("s")
        assert f"prefix {says}" in str(refused.value)


@half
@pytest.mark.parametrize("name", ["{", "a}b", "{}", "{}x", "a{b"])
def test_braces_that_are_no_hash_tag_are_refused(half: Any, name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"braces that do not form a hash tag; write a tag as in '\{orders\}_main'"
    ):
        half.StreamProducer(half.StreamClient(), name)


# --- numbers of a consumer --------------------------------------------------------------------------

SIZES = [
    "batch_size", "min_idle_claim_ms", "max_deliveries", "max_claim_passes", "max_attempts", "concurrency", "prefetch",
    "heartbeat_interval_ms", "recovery_interval_ms", "retry_initial_delay_ms", "retry_max_delay_ms", "handler_timeout_ms",
    "retention_interval_ms", "consumer_ttl_ms",
]  # fmt: skip
MAY_BE_ZERO = ["block_ms", "shutdown_grace_ms", "max_stream_size"]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_and_times_must_be_positive(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value} must be positive"):
        ConsumerConfig(group="g", **{name: value})


@pytest.mark.parametrize("name", MAY_BE_ZERO)
def test_some_may_be_zero_but_not_less(name: str) -> None:
    assert getattr(ConsumerConfig(group="g", **{name: 0}), name) == 0
    with pytest.raises(ConfigurationError, match=f"{name}=-1 must be 0 or more"):
        ConsumerConfig(group="g", **{name: -1})


@pytest.mark.parametrize("name", [*SIZES, *MAY_BE_ZERO])
@pytest.mark.parametrize("value", ["100", 1.5, True, math.nan, [1]], ids=repr)
def test_sizes_and_times_must_be_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=.* must be a whole number"):
        ConsumerConfig(group="g", **{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "0.1", True], ids=repr)
def test_jitter_is_a_share(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="retry_jitter"):
        ConsumerConfig(group="g", retry_jitter=value)


def test_a_heartbeat_must_come_three_times_in_a_lease() -> None:
    ConsumerConfig(group="g", min_idle_claim_ms=3_000, heartbeat_interval_ms=1_000)
    with pytest.raises(
        ConfigurationError, match=r"heartbeat_interval_ms=1001 .* third of the lease, .* use 1000 or less"
    ):
        ConsumerConfig(group="g", min_idle_claim_ms=3_000, heartbeat_interval_ms=1_001)


def test_what_is_read_ahead_must_hold_a_batch() -> None:
    with pytest.raises(ConfigurationError, match="prefetch=5 must be at least batch_size=10"):
        ConsumerConfig(group="g", batch_size=10, prefetch=5)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        ConsumerConfig(group="g", batchsize=10)  # type: ignore[call-arg]


# --- handlers ---------------------------------------------------------------------------------------


@half
def test_exactly_one_handler_is_wanted(half: Any) -> None:
    for options in ({"handler": None, "message_handler": None}, {"handler": print, "message_handler": print}):
        with pytest.raises(ConfigurationError, match=r"exactly one of handler \(for batches\) and message_handler"):
            consumer(half, **options)


@half
@pytest.mark.parametrize("what", ["handler", "message_handler", "dlq_handler", "error_hook"])
def test_what_is_called_must_be_a_function(half: Any, what: str) -> None:
    options = {"message_handler": None} if what == "handler" else {}
    with pytest.raises(ConfigurationError, match=f"{what} must be a function, not 'tasks.handle'"):
        consumer(half, **options, **{what: "tasks.handle"})


@pytest.mark.parametrize("what", ["handler", "message_handler", "dlq_handler", "error_hook"])
def test_an_async_function_is_refused_by_the_sync_consumer(what: str) -> None:
    async def run(*_: object) -> None: ...

    class Callable:
        async def __call__(self, *_: object) -> None: ...

    for function in (run, Callable()):
        options = {"message_handler": None} if what == "handler" else {}
        with pytest.raises(ConfigurationError, match=f"{what} is async: pass a plain function"):
            consumer(sync, **options, **{what: function})


@half
@pytest.mark.parametrize("what", ["handler", "message_handler", "dlq_handler", "error_hook"])
def test_a_function_that_takes_other_arguments_is_refused_before_messages_fail_of_it(half: Any, what: str) -> None:
    options = {"message_handler": None} if what == "handler" else {}
    wanted = 1 if what in {"handler", "message_handler"} else 2
    takes = {0: lambda: None, 1: lambda _: None, 2: lambda _, __: None}
    takes_any = lambda *_: None  # noqa: E731
    for function in (takes[wanted], takes_any, print):
        consumer(half, **options, **{what: function})
    for function in (takes[0], takes[3 - wanted]):
        with pytest.raises(ConfigurationError, match=f"{what} is called with {wanted} argument"):
            consumer(half, **options, **{what: function})


@half
@pytest.mark.parametrize("what", ["handler", "message_handler", "dlq_handler", "error_hook", "on_heartbeat_failure"])
def test_a_decorator_may_pass_more_arguments_to_the_function_that_it_wraps(half: Any, what: str) -> None:
    def handle(message: object, reason: object, session: object) -> object:
        return message, reason, session

    @functools.wraps(handle)
    def with_session(message: object = None, reason: object = None) -> object:
        return handle(message, reason, "session")

    options = {what: with_session}
    if what == "on_heartbeat_failure":
        half.RedisMessageQueue("q", client=half.StreamClient(), heartbeat_interval_seconds=30, **options)
    else:
        consumer(half, **{"message_handler": None, **options} if what == "handler" else options)


@half
def test_a_handler_for_single_messages_is_not_taken_for_a_batch_handler(half: Any) -> None:
    def one(message: StreamMessage) -> None: ...

    def many(messages: list[StreamMessage]) -> list[str]:
        return []

    # Annotations are text here; without the import from __future__ they are values.
    one_by_value, many_by_value = lambda _message: None, lambda _messages: []
    one_by_value.__annotations__ = {"_message": StreamMessage}
    many_by_value.__annotations__ = {"_messages": list[StreamMessage]}
    for function in (one, one_by_value):
        consumer(half, message_handler=function)
        with pytest.raises(ConfigurationError, match="takes a StreamMessage: pass it as message_handler"):
            consumer(half, message_handler=None, handler=function)
    for function in (many, many_by_value):
        consumer(half, message_handler=None, handler=function)
        with pytest.raises(ConfigurationError, match="takes a list: pass it as handler"):
            consumer(half, message_handler=function)


# --- parts ------------------------------------------------------------------------------------------


@half
@pytest.mark.parametrize(
    "make",
    [
        lambda half, client: half.StreamProducer(client, "orders"),
        lambda half, client: half.StreamConsumer(client, "orders", ConsumerConfig(group="g"), list),
        lambda half, client: half.ConsumerGroup(client, "orders", "g"),
        lambda half, client: half.DeadLetters(client, "orders"),
        lambda half, client: half.StreamBalancer(client, "sessions", id="w"),
        lambda half, client: half.TopicProducer(client, half.Topic("orders", shards=2)),
        lambda half, client: half.tasks.RedisTaskQueue(client),
        lambda half, client: half.ops.Inspector(client),
    ],
    ids=["producer", "consumer", "group", "dead letters", "balancer", "topic", "tasks", "inspector"],
)
def test_a_client_is_a_stream_client_of_the_same_half(half: Any, make: Any) -> None:
    other = sync if half is penstock else penstock
    strangers = [None, redis.Redis(), redis.asyncio.Redis(), other.StreamClient()]
    if "RedisTaskQueue" not in make.__code__.co_names:  # which takes a URL
        strangers.append("redis://localhost")
    for stranger in strangers:
        with pytest.raises(ConfigurationError, match=rf"client must be a StreamClient of {half.__name__}, not "):
            make(half, stranger)


@half
@pytest.mark.parametrize("config", [{"group": "g"}, "g", None], ids=repr)
def test_a_consumer_wants_a_consumer_config(half: Any, config: Any) -> None:
    with pytest.raises(ConfigurationError, match="config must be a ConsumerConfig, not"):
        half.StreamConsumer(half.StreamClient(), "orders", config, list)


@half
@pytest.mark.parametrize("serializer", [JsonSerializer, "json", 5], ids=str)
def test_a_serializer_is_an_object_that_encodes_and_decodes(half: Any, serializer: Any) -> None:
    for make in (half.StreamProducer, lambda *_, **options: consumer(half, **options)):
        with pytest.raises(ConfigurationError, match=r"serializer=.* must be an object with encode\(\) and decode\(\)"):
            make(half.StreamClient(), "orders", serializer=serializer)


# --- producers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [{"order": 1}, "abc", b"abc", None], ids=repr)
def test_many_messages_are_a_list(items: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"items must be a list, not .*: push\(\) takes a single message"):
        sync.StreamProducer(sync.StreamClient(), "orders").push_many(items)


@pytest.mark.parametrize("do", ["redrive", "purge"])
def test_ids_of_dead_letters_are_a_list(do: str) -> None:
    with pytest.raises(ConfigurationError, match="ids must be a list, not str"):
        getattr(sync.DeadLetters(sync.StreamClient(), "orders"), do)("17-0")


@half
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("on_full", "explode", "on_full='explode' must be one of reject, block, drop_oldest"),
        ("on_full", None, "must be one of"),
        ("durability", "forever", "durability='forever' must be one of fast, local, replicated"),
        ("max_len", 0, "max_len=0 must be positive"),
        ("max_len", -5, "max_len=-5 must be positive"),
        ("max_len", "5", "max_len='5' must be a whole number"),
        ("max_len", 1.5, "max_len=1.5 must be a whole number"),
        ("replicas", 0, "replicas=0 must be positive"),
        ("replicas", None, "replicas=None must be a whole number"),
        ("durability_timeout_ms", 0, "must be positive"),
        ("max_batch", 0, "max_batch=0 must be positive"),
        ("max_batch", 2.5, "max_batch=2.5 must be a whole number"),
        ("max_buffered", -1, "must be positive"),
        ("retry_budget_ms", 0, "retry_budget_ms=0 must be positive"),
        ("retry_budget_ms", math.nan, "must be a whole number"),
        ("retry_budget_ms", math.inf, "retry_budget_ms=inf must be a whole number"),
        ("retry_budget_ms", "30", "retry_budget_ms='30' must be a whole number"),
        ("block_timeout_ms", -1, "must be positive"),
        ("linger_ms", -1, "linger_ms=-1 must be 0 or more"),
        ("linger_ms", "5", "linger_ms='5' must be a number"),
    ],
)
def test_settings_of_a_producer_are_checked(half: Any, name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        half.StreamProducer(half.StreamClient(), "s", **{name: value})
    assert says in str(refused.value)


@half
def test_an_unknown_setting_of_a_producer_is_named(half: Any) -> None:
    with pytest.raises(TypeError, match="maxlen"):
        half.StreamProducer(half.StreamClient(), "s", maxlen=5)


def push(half: Any, data: Any, serializer: Any = None, **options: Any) -> None:
    """Pushes what is refused before any server is needed."""
    producer = half.StreamProducer(half.StreamClient(port=1), "s", serializer=serializer)
    result = producer.push(data, **options)
    if half is penstock:
        result.send(None)


def refused_push(half: Any, data: Any, serializer: Any = None, **options: Any) -> str:
    """Returns what is said against the push."""
    with pytest.raises((ConfigurationError, EncodeError)) as refused:
        push(half, data, serializer, **options)
    return str(refused.value)


@half
@pytest.mark.parametrize("name", ["key", "dedup_key", "message_id"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "must be a non-empty string, not ''"),
        (5, "must be a non-empty string, not 5"),
        (b"x", "must be a non-empty string"),
        ("x" * 513, "has 513 characters, more than the limit of 512"),
        ("a\ud800", "must not contain lone surrogates"),
    ],
    ids=["empty", "number", "bytes", "long", "surrogate"],
)
def test_keys_of_a_message_are_checked(half: Any, name: str, value: Any, says: str) -> None:
    assert f"{name} {says}" in refused_push(half, {}, **{name: value})


@half
@pytest.mark.parametrize(
    "headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}, {"a": "\ud800"}, {"\ud800": "a"}, ["a"]]
)
def test_headers_are_text(half: Any, headers: Any) -> None:
    assert "headers must be" in refused_push(half, {}, headers=headers)


@half
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "5", dt.timedelta(seconds=5)], ids=repr)
def test_times_of_a_message_are_positive_numbers(half: Any, value: Any) -> None:
    assert f"expires_in_ms={value!r} must be" in refused_push(half, {}, expires_in_ms=value)
    assert f"dedup_window_ms={value!r} must be" in refused_push(half, {}, dedup_key="k", dedup_window_ms=value)


@half
def test_a_number_that_the_server_cannot_count_is_refused(half: Any) -> None:
    assert "must be at most 9007199254740992" in refused_push(half, {}, dedup_key="k", dedup_window_ms=10**20)
    with pytest.raises(ConfigurationError, match=r"min_idle_claim_ms=.* must be at most 9007199254740992"):
        half.ConsumerConfig(group="g", min_idle_claim_ms=10**30)


# --- payloads ---------------------------------------------------------------------------------------


@half
@pytest.mark.parametrize(
    ("serializer", "data", "says"),
    [
        (None, {"items": [{"price": object()}]}, ["items", "[0]", "price", "object"]),
        (None, {"ratio": math.nan}, ["ratio", "nan"]),
        (None, {"when": {"nested": {1: complex(1, 2)}}}, ["when", "nested", "complex"]),
        (MsgpackSerializer(), {"items": [1, lambda: 1]}, ["items", "[1]", "function"]),
        (PickleSerializer(allow_pickle=True), {"call": lambda: 1}, ["lambda"]),
        (JsonSerializer(max_bytes=100), {"text": "x" * 200}, ["max_bytes=100"]),
        (MsgpackSerializer(max_bytes=100), {"text": "x" * 200}, ["max_bytes=100"]),
    ],
    ids=["object", "nan", "complex", "function", "pickle", "large JSON", "large msgpack"],
)
def test_a_payload_that_cannot_be_written_is_refused_with_the_place_in_it(
    half: Any, serializer: Any, data: Any, says: list[str]
) -> None:
    message = refused_push(half, data, serializer)
    assert [part for part in says if part not in message] == []


@half
def test_a_payload_that_is_too_large_has_an_error_of_its_own(half: Any) -> None:
    with pytest.raises(PayloadTooLarge, match="max_bytes"):
        push(half, "x" * 2_000_000)


@half
def test_a_serializer_must_return_bytes(half: Any) -> None:
    class Careless:
        def encode(self, data: Any) -> Any:
            return str(data)

        def decode(self, raw: bytes) -> Any:
            return raw

    assert "must return bytes, not str" in refused_push(half, {}, Careless())


# --- clients ----------------------------------------------------------------------------------------


@half
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": ""}, "host='' must be a host name"),
        ({"host": 5}, "host=5 must be a host name"),
        ({"port": 0}, "port=0 must be a number from 1 to 65535"),
        ({"port": 70_000}, "port=70000"),
        ({"port": "6379"}, "port='6379' must be a number"),
        ({"db": -1}, "db=-1 must be the number of a database"),
        ({"db": "0"}, "db='0'"),
        ({"socket_timeout": 0}, "socket_timeout=0 must be a positive, finite number of seconds"),
        ({"socket_timeout": None}, "socket_timeout=None must be"),
        ({"socket_timeout": math.inf}, "socket_timeout=inf"),
        ({"socket_connect_timeout": -1}, "socket_connect_timeout=-1 must be a positive"),
        ({"pool_timeout": -1}, "pool_timeout=-1"),
        ({"max_connections": 0}, "max_connections=0 must be positive"),
        ({"colour": "red"}, "unknown option 'colour'"),
        ({"ssl_colour": "red"}, "unknown option 'ssl_colour'"),
    ],
    ids=str,
)
def test_settings_of_a_client_are_checked(half: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        half.StreamClient(**options)
    assert says in str(refused.value)
    if not {"host", "port"} & set(options):
        with pytest.raises(ConfigurationError) as refused:
            half.StreamClient.from_url("redis://localhost", **options)
        assert next(iter(options)) in str(refused.value)


@half
def test_a_cluster_has_one_database(half: Any) -> None:
    with pytest.raises(ConfigurationError, match="only database 0; remove db"):
        half.StreamClient.from_cluster([{"host": "h", "port": 1}], db=1)


# --- verdicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [errors.Snooze, errors.RetryLater])
@pytest.mark.parametrize("delay_s", [-1, math.nan, math.inf, "5", None, dt.timedelta(seconds=5)], ids=repr)
def test_a_delay_is_a_number_of_seconds(verdict: Any, delay_s: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"delay_s=.* must be a number of seconds from 0 to 100 years"):
        verdict(delay_s)


# --- dead letters in the stream itself ------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "shop:"])
async def test_dead_letters_cannot_be_in_the_stream_itself(prefix: str) -> None:
    async with StreamClient.from_url("redis://127.0.0.1:1", prefix=prefix) as client:
        config = ConsumerConfig(group="workers", dlq_stream="orders")
        with pytest.raises(ConfigurationError, match=r"dlq_stream=.*orders' is the stream itself"):
            StreamConsumer(client, "orders", config, list)
        with pytest.raises(ConfigurationError, match="is the stream itself"):
            DeadLetters(client, "orders", "orders")
        with pytest.raises(ConfigurationError, match="is the stream itself"):
            await ConsumerGroup(client, "orders", "workers").ensure("orders", "dead")
        lease = {"message_visibility_timeout_seconds": 30, "max_delivery_count": 3, "dead_letter_queue": "orders"}
        with pytest.raises(ConfigurationError, match="is the stream itself"):
            RedisMessageQueue("orders", gateway=RedisGateway(redis_client=client, **lease))


# --- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload", None),
        ("payload", [1]),
        ("payload", {1: 2}),
        ("payload", "text"),
        ("then", Task(kind="next")),
        ("then", ["next"]),
        ("requires", "printer"),
        ("priority", "urgent"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_task_that_no_worker_could_read_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Task(kind="print", **{field: value})


def test_a_payload_that_cannot_be_encoded_is_named_by_its_place() -> None:
    with pytest.raises(EncodeError, match=r"payload\.order\.items\[1\] is of type object: .*; convert it"):
        encode(Task(kind="print", payload={"order": {"items": [1, object()]}}))


def test_a_task_takes_what_is_documented() -> None:
    task = Task(kind="print", priority="high", requires={"printer"}, then=[Task(kind="next")])
    assert (task.priority, task.requires, task.then[0].kind) == (Priority.HIGH, frozenset({"printer"}), "next")
    assert decode_task(encode(task)) == task


@pytest.mark.parametrize(
    ("field", "value"), [("priority", "urgent"), ("payload", [1]), ("payload", {1: 2}), ("kind", ""), ("name", "a b")]
)
def test_a_schedule_whose_tasks_could_not_be_added_is_refused_when_it_is_declared(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Handlers().schedule("@daily", **{"kind": "report", "name": "daily", field: value})


def test_a_schedule_takes_what_is_documented() -> None:
    made = Handlers().schedule("@daily", "report", payload={"n": 1}, priority="high")
    task = made.task_at(dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC))
    assert (task.id, task.priority, task.payload) == ("cron.report.20300131T120000Z", Priority.HIGH, {"n": 1})


_QUEUES = pytest.mark.parametrize(
    "queue", [sync.tasks.StubQueue(), sync.tasks.RedisTaskQueue("redis://127.0.0.1:1")], ids=["stub", "redis"]
)


@_QUEUES
@pytest.mark.parametrize(
    "task", [{"kind": "print"}, "print", [Task(kind="print")], None], ids=lambda task: type(task).__name__
)
def test_what_is_enqueued_is_a_task(queue: Any, task: Any) -> None:
    for enqueue in (queue.enqueue, lambda task: queue.enqueue_many([task])):
        with pytest.raises(ConfigurationError, match="task must be a Task, not"):
            enqueue(task)


@_QUEUES
@pytest.mark.parametrize("tasks", [Task(kind="print"), {"kind": "print"}, None], ids=lambda tasks: type(tasks).__name__)
def test_many_tasks_are_a_list(queue: Any, tasks: Any) -> None:
    with pytest.raises(ConfigurationError, match="tasks must be a list, not"):
        queue.enqueue_many(tasks)


@_QUEUES
@pytest.mark.parametrize("value", [dt.timedelta(seconds=5), "5"], ids=repr)
def test_seconds_of_a_task_queue_are_a_number(queue: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"delay=.* must be a number of seconds"):
        queue.enqueue(Task(kind="print"), delay=value)
    with pytest.raises(ConfigurationError, match=r"timeout=.* must be a number of seconds"):
        queue.wait_for_result("print-1", timeout=value)
    with pytest.raises(ConfigurationError, match="at must be a datetime, not"):
        queue.enqueue(Task(kind="print"), at=value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_s", dt.timedelta(seconds=5)),
        ("timeout_s", "5"),
        ("retry", 3),
        ("rate", 100),
        ("rate_per_key", 1.5),
    ],
    ids=repr,
)
def test_options_of_a_handler_are_checked_where_it_is_registered(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        Handlers().task("print", **{option: value})


@half
@pytest.mark.parametrize("kind", ["Worker", "InlineWorker"])
def test_a_worker_wants_a_queue_handlers_and_a_back_end(half: Any, kind: str) -> None:
    make, queue, handlers = getattr(half.tasks, kind), half.tasks.StubQueue(), Handlers()
    handlers.task("print")(print)
    make(queue, handlers)
    with pytest.raises(ConfigurationError, match="queue must be a task queue, not str"):
        make("redis://localhost", handlers)
    other = penstock.sync.tasks if half is penstock else penstock.tasks
    with pytest.raises(ConfigurationError, match=r"but this worker is (async|blocking): import both"):
        make(other.StubQueue(), handlers)
    for wrong in (print, {"print": print}, None):
        with pytest.raises(ConfigurationError, match="handlers must be a Handlers, not"):
            make(queue, wrong)
    with pytest.raises(ConfigurationError, match="results must be a result back-end, not str"):
        make(queue, handlers, results="results")


@half
def test_a_task_handler_that_takes_no_task_is_refused_before_tasks_fail_of_it(half: Any) -> None:
    handlers = Handlers()
    handlers.task("print")(lambda: None)
    with pytest.raises(ConfigurationError, match="the handler for 'print' is called with 1 argument"):
        half.tasks.Worker(half.tasks.StubQueue(), handlers)
