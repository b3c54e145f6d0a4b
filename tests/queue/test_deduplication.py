"""One deduplication key lets one message in within its window, and is free again when that message came to nothing."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import redis

from penstock import RedisGateway, RedisMessageQueue, StreamClient
from penstock.errors import FatalError
from tests.helpers.aio import eventually, outcomes, start
from tests.queue.stage import NAME, fail, fail_until_dead, make_queue, markers, payloads, take, take_all

pytestmark = pytest.mark.every_server


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def test_the_same_message_is_taken_once(client: StreamClient, raw: redis.Redis) -> None:
    queue = RedisMessageQueue(NAME, client=client)
    assert [await queue.publish(text) for text in ("a", "a", "b", "a")] == [True, False, True, False]
    assert payloads(raw) == [b"a", b"b"]


async def test_equal_dicts_are_the_same_message_as_is_the_text_that_stands_for_them(client: StreamClient) -> None:
    queue = make_queue(client)
    assert await queue.publish({"b": 2, "a": 1}) is True
    assert await queue.publish({"a": 1, "b": 2}) is False
    assert await queue.publish('{"a": 1, "b": 2}') is False
    assert await queue.publish('{"a":1,"b":2}') is True, "another text"


async def test_the_default_key_is_the_sha256_of_the_text_and_lasts_an_hour(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = RedisMessageQueue(NAME, client=client)
    await queue.publish({"b": 2, "a": 1})
    key = queue.key.deduplication(sha256('{"a": 1, "b": 2}'))
    assert markers(raw) == [key.encode()]
    assert 3_590 < raw.ttl(key) <= 3_600
    [(entry_id, _)] = raw.xrange(NAME)
    assert raw.get(key) == entry_id, "it names the message for which it stands"


async def test_of_many_who_publish_the_same_at_once_one_hears_true(redis_url: str, raw: redis.Redis) -> None:
    async with StreamClient.from_url(redis_url) as one, StreamClient.from_url(redis_url) as other:
        queues = [make_queue(one), make_queue(other)]
        answers = await outcomes([start(queue.publish, "same") for _ in range(15) for queue in queues])
    assert sorted(answers) == [False] * 29 + [True]
    assert payloads(raw) == [b"same"]


async def test_after_its_window_a_message_may_come_again_even_while_the_first_is_processed(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, message_deduplication_log_ttl_seconds=0.05)
    assert await queue.publish("hello") is True
    async with queue.process_message() as message:
        await eventually(lambda: not markers(raw))
        assert await queue.publish("hello") is True
        assert message == "hello"
    assert await take_all(queue) == ["hello"]


@pytest.mark.usefixtures("default_server")
async def test_a_completed_message_keeps_its_key_for_the_rest_of_the_window(client: StreamClient) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    await take(queue)
    assert await queue.publish("hello") is False


@pytest.mark.usefixtures("default_server")
async def test_a_message_that_waits_for_its_retry_keeps_its_key(client: StreamClient) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    await fail(queue)
    assert await queue.publish("hello") is False


# --- keys of the user's own -------------------------------------------------------------------------


@pytest.mark.usefixtures("default_server")
async def test_a_function_of_the_message_may_make_the_key(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, get_deduplication_key=lambda message: message["id"])
    assert await queue.publish({"id": "abc", "data": "first"}) is True
    assert await queue.publish({"id": "abc", "data": "second"}) is False
    assert await queue.publish({"id": "def", "data": "third"}) is True
    assert markers(raw) == [queue.key.deduplication(key).encode() for key in ("abc", "def")]


@pytest.mark.usefixtures("default_server")
async def test_a_function_object_that_is_false_is_used_all_the_same(client: StreamClient) -> None:
    class Falsy:
        def __bool__(self) -> bool:
            return False

        def __call__(self, message: Any) -> str:
            return str(message["id"])

    queue = make_queue(client, get_deduplication_key=Falsy())
    assert await queue.publish({"id": 1, "data": "first"}) is True
    assert await queue.publish({"id": 1, "data": "second"}) is False


@pytest.mark.usefixtures("default_server")
async def test_none_takes_the_message_itself_as_the_key(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, get_deduplication_key=None)
    assert [await queue.publish(message) for message in ("hello", "hello", {"a": 1}, '{"a": 1}')] == [
        True, False, True, False,
    ]  # fmt: skip
    assert set(markers(raw)) == {queue.key.deduplication(key).encode() for key in ("hello", '{"a": 1}')}


@pytest.mark.usefixtures("default_server")
async def test_a_long_key_is_kept_by_its_hash(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, get_deduplication_key=None)
    long = "x" * 100_000
    assert [await queue.publish(text) for text in (long, long, long + "y")] == [True, False, True]
    assert all(len(marker) < 200 for marker in markers(raw))


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "returned ''.*identifies the message"),
        (None, "must return a str, not NoneType"),
        (42, "must return a str, not int.*str"),
        (b"key", "must return a str, not bytes"),
        ("\ud800", "surrogate"),
    ],
    ids=repr,
)
async def test_what_cannot_be_a_key_is_refused_and_nothing_is_published(
    client: StreamClient, raw: redis.Redis, key: Any, words: str
) -> None:
    queue = make_queue(client, get_deduplication_key=lambda _message: key)
    with pytest.raises(TypeError, match=words):
        await queue.publish({"id": "abc"})
    assert raw.keys() == []


@pytest.mark.usefixtures("default_server")
async def test_what_the_function_raises_reaches_the_caller_and_nothing_is_published(
    client: StreamClient, raw: redis.Redis
) -> None:
    def make_key(message: Any) -> str:
        raise LookupError("no such field")

    queue = make_queue(client, get_deduplication_key=make_key)
    with pytest.raises(LookupError, match="no such field"):
        await queue.publish({"data": 1})
    assert raw.keys() == []


# async only
@pytest.mark.usefixtures("default_server")
@pytest.mark.acl(stream=("queue 0", "queue 1", "queue 2"))
async def test_the_function_may_be_async(client: StreamClient) -> None:
    async def make_key(message: Any) -> str:
        return str(message["id"])

    class Lookup:
        async def __call__(self, message: Any) -> str:
            return str(message["id"])

    for number, make in enumerate((make_key, Lookup(), lambda message: make_key(message))):  # noqa: PLW0108
        queue = make_queue(client, f"queue {number}", get_deduplication_key=make)
        assert await queue.publish({"id": 1, "data": "first"}) is True
        assert await queue.publish({"id": 1, "data": "second"}) is False


# end async only


# --- a message that came to nothing -----------------------------------------------------------------


async def test_a_dead_letter_frees_its_key_so_that_the_producer_may_try_again(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, max_delivery_count=2)
    await queue.publish("hello")
    assert await fail_until_dead(queue, raw) == 2
    assert markers(raw) == []
    assert await queue.publish("hello") is True
    assert await take_all(queue) == ["hello"]


async def test_a_fatal_error_frees_the_key(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, get_deduplication_key=lambda message: message["id"])
    await queue.publish({"id": "abc"})
    await fail(queue, FatalError("never"))
    assert markers(raw) == []


async def test_a_message_that_the_terminal_policy_gives_up_frees_its_key(
    client: StreamClient, raw: redis.Redis
) -> None:
    # redis-message-queue keeps the key: the job and every repetition of it are lost for an hour.
    for options in ({}, {"enable_failed_queue": True}):
        queue = make_queue(client, on_failure="terminal", **options)
        assert await queue.publish("hello") is True
        await fail(queue)
        assert markers(raw) == [], options


async def test_a_dropped_message_frees_its_key(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, max_pending_length=2, pending_overload_policy="drop_oldest")
    for text in ("a", "b", "c"):
        assert await queue.publish(text) is True
    assert payloads(raw) == [b"b", b"c"]
    assert set(markers(raw)) == {queue.key.deduplication(sha256(text)).encode() for text in ("b", "c")}
    assert await queue.publish("a") is True


async def test_purged_messages_free_their_keys(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client)
    for n in range(5):
        await queue.publish(f"message {n}")
    async with queue.process_message():
        assert await queue.purge(target="pending") == 4
        assert markers(raw) == [queue.key.deduplication(sha256("message 0")).encode()]
    assert await queue.publish("message 3") is True


async def test_at_most_once_a_failure_frees_the_key(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, message_visibility_timeout_seconds=None)
    await queue.publish("hello")
    await fail(queue)
    assert markers(raw) == []


async def test_a_message_frees_only_the_key_that_is_its_own(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(client, message_deduplication_log_ttl_seconds=0.05)
    await queue.publish("hello")
    await eventually(lambda: not markers(raw))
    lasting = RedisMessageQueue(NAME, gateway=RedisGateway(redis_client=client))
    assert await lasting.publish("hello") is True
    await fail(queue, FatalError("the first of the two"))
    assert len(markers(raw)) == 1, "the key belongs to the second message"
    assert await lasting.publish("hello") is False


async def test_a_key_that_is_no_text_keeps_nobody_from_dropping_or_giving_up_its_message(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client, max_pending_length=2, pending_overload_policy="drop_oldest")
    for text in ("a", "b", "c"):
        assert await queue.publish(text) is True
        raw.delete(*markers(raw))
        for name in "abc":
            raw.sadd(queue.key.deduplication(sha256(name)), "no text")
    assert payloads(raw) == [b"b", b"c"]
    await fail(queue, FatalError("cannot be done"))
    await fail(make_queue(client, message_visibility_timeout_seconds=None))
    assert (payloads(raw), len(markers(raw))) == ([], 3)
