"""What is published is handed out: once, as it was, in the order in which it came."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.errors import EncodeError, WrongType
from penstock.queue.model import canonical
from tests.helpers.aio import outcomes, start
from tests.queue.stage import NAME, make_queue, markers, payloads, take, take_all

TEXTS = [
    "",
    " ",
    "hello",
    "two\nlines\r\n",
    "nul\0inside",
    "Zürich, 東京, \N{PARTY POPPER}",
    "\x1eRMQ1:{}",
    "x" * 300_000,
]


async def test_a_published_message_is_handed_out(client: StreamClient) -> None:
    queue = RedisMessageQueue(NAME, client=client)
    assert await queue.publish("hello") is True
    assert await take(queue) == "hello"


async def test_messages_are_handed_out_in_the_order_in_which_they_came(client: StreamClient) -> None:
    queue = make_queue(client)
    for n in range(100):
        await queue.publish(f"message {n}")
    assert await take_all(queue) == [f"message {n}" for n in range(100)]


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("deduplication", [True, False])
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:12]))
async def test_a_text_arrives_as_it_was(client: StreamClient, text: str, deduplication: bool) -> None:
    queue = make_queue(client, deduplication=deduplication)
    assert await queue.publish(text) is True
    async with queue.process_message() as message:
        assert message == text
    assert await take(queue) is None


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"key": "value", "count": 42},
        {"outer": {"inner": [1, 2.5, None, True]}, "list": [{"a": 1}]},
        {"city": "Zürich", "emoji": "\N{PARTY POPPER}", "": "an empty name"},
    ],
)
async def test_a_dict_arrives_as_its_json(client: StreamClient, value: dict[str, Any]) -> None:
    queue = make_queue(client)
    await queue.publish(value)
    assert json.loads(await take(queue)) == value


@pytest.mark.usefixtures("default_server")
async def test_equal_dicts_are_one_text_of_ascii_with_sorted_keys(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, deduplication=False)
    await queue.publish({"b": 2, "a": "ü"})
    await queue.publish({"a": "ü", "b": 2})
    assert payloads(raw) == [b'{"a": "\\u00fc", "b": 2}'] * 2


async def test_without_deduplication_every_publish_is_a_message_of_its_own(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, deduplication=False)
    assert [await queue.publish("hello") for _ in range(3)] == [True] * 3
    assert markers(raw) == []
    ids = [fields[b"message_id"] for _, fields in raw.xrange(NAME)]
    assert len(set(ids)) == 3
    assert await take_all(queue) == ["hello"] * 3


async def test_what_many_publish_at_once_is_all_handed_out(client: StreamClient) -> None:
    queue = make_queue(client, deduplication=False)
    texts = [f"message {n}" for n in range(100)]
    assert await outcomes([start(queue.publish, text) for text in texts]) == [True] * 100
    assert sorted(await take_all(queue)) == sorted(texts)


@pytest.mark.usefixtures("default_server")
@pytest.mark.acl(stream=("one", "other"))
async def test_queues_of_one_server_do_not_touch_each_other(client: StreamClient) -> None:
    one, other = make_queue(client, "one"), make_queue(client, "other")
    assert await one.publish("same") is True
    assert await other.publish("same") is True
    assert (await take_all(one), await take_all(other)) == (["same"], ["same"])


@pytest.mark.usefixtures("default_server")
@pytest.mark.acl(stream=("one", "other"))
async def test_two_queues_may_share_a_gateway_without_dead_letters(client: StreamClient) -> None:
    first = make_queue(client, "one", max_delivery_count=None, dead_letter_queue=None)
    second = RedisMessageQueue("other", gateway=first._gateway)
    await first.publish("a")
    await second.publish("b")
    assert (await take_all(first), await take_all(second)) == (["a"], ["b"])


# --- what cannot be published -----------------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("deduplication", [True, False])
@pytest.mark.parametrize("message", [42, b"hello", None, [1, 2], 3.14, True, ("a",), {"a"}], ids=repr)
async def test_anything_but_a_text_or_a_dict_is_refused(
    client: StreamClient, raw: redis.Redis, message: Any, deduplication: bool
) -> None:
    queue = make_queue(client, deduplication=deduplication)
    with pytest.raises(TypeError, match=f"not {type(message).__name__}: use json.dumps"):
        await queue.publish(message)
    assert raw.keys() == []


def test_a_dict_is_the_text_that_json_makes_of_it_with_its_keys_in_order() -> None:
    values: list[Any] = [
        *TEXTS[:-1],
        None,
        True,
        False,
        0,
        -(2**70),
        0.1,
        1e300,
        -0.0,
        [],
        {},
        '"\\/\x7f\u2028',
        "\ud83d",
    ]
    deep: dict[str, Any] = {}
    for number, value in enumerate(values):
        deep = {"z": value, "a": [deep, value, (number,)], "\N{SNOWMAN}": deep}  # twice the same, which is no circle
        deep = deep if number % 4 else {"value": value}
        assert canonical(deep) == json.dumps(deep, sort_keys=True)


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("deduplication", [True, False])
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({1: "x"}, "dict keys must be str: 1 has type int; use str"),
        ({None: "x"}, "NoneType"),
        ({("a", 1): "x"}, "tuple"),
        ({"a": math.nan}, "cannot be encoded as JSON"),
        ({"a": [math.inf]}, "cannot be encoded as JSON"),
        ({"a": {1, 2}}, "cannot be encoded as JSON.*use only"),
        ({"a": b"bytes"}, "cannot be encoded as JSON"),
        ({"a": {"b": 1, 2: 3}}, "cannot be encoded as JSON"),
        (circular(), "cannot be encoded as JSON"),
        ("half of a pair: \ud83d", "surrogate"),
    ],
    ids=["int key", "None key", "tuple key", "nan", "inf", "set", "bytes", "mixed keys", "circular", "surrogate"],
)
async def test_what_json_cannot_say_is_refused_and_leaves_nothing(
    client: StreamClient, raw: redis.Redis, message: Any, words: str, deduplication: bool
) -> None:
    queue = make_queue(client, deduplication=deduplication)
    with pytest.raises(EncodeError, match=words) as caught:
        await queue.publish(message)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert raw.keys() == []


@pytest.mark.usefixtures("default_server")
async def test_a_key_of_another_type_is_said_and_leaves_no_deduplication_key(
    client: StreamClient, raw: redis.Redis
) -> None:
    raw.lpush(NAME, "a list of somebody else")
    queue = make_queue(client)
    with pytest.raises(WrongType, match="choose another name, or remove the key"):
        await queue.publish("hello")
    assert markers(raw) == []
    assert raw.lrange(NAME, 0, -1) == [b"a list of somebody else"]
