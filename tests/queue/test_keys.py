"""The names of a queue: two queues never share a key, and a bad name is told at once."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import RedisMessageQueue, StreamClient
from penstock.errors import ClusterSlotError, ConfigurationError
from tests.queue.stage import fail, make_queue, take


def queue_named(client: StreamClient, name: Any, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(name, client=client, **options)


@pytest.mark.usefixtures("default_server")
async def test_the_keys_are_named_after_the_queue(client: StreamClient) -> None:
    key = queue_named(client, "orders").key
    assert (key.name, key.pending) == ("orders", "orders")
    assert (key.processing, key.completed, key.failed) == ("orders::processing", "orders::completed", "orders::failed")
    assert key.dead_letter == "orders::dlq"
    assert key.deduplication("abc") == "{orders}:dedup:abc"


@pytest.mark.usefixtures("default_server")
async def test_the_separator_may_be_chosen(client: StreamClient, raw: redis.Redis) -> None:
    queue = queue_named(
        client, "orders::eu", key_separator="/", max_delivery_count=1, enable_completed_queue=True,
        enable_failed_queue=True,
    )  # fmt: skip
    await queue.publish("good")
    await queue.publish("bad")
    await take(queue)
    await fail(queue)
    streams = [key.decode() for key in raw.scan_iter(_type="stream")]
    assert sorted(streams) == ["orders::eu", "orders::eu/completed", "orders::eu/dlq", "orders::eu/failed"]
    assert (queue.key.completed, queue.key.failed, queue.key.dead_letter) == tuple(
        sorted(streams)[1:][i] for i in (0, 2, 1)
    )


async def test_every_key_of_a_queue_with_a_hash_tag_has_it(client: StreamClient, raw: redis.Redis) -> None:
    queue = make_queue(
        client, "{shop}.orders", max_delivery_count=1, enable_completed_queue=True, enable_failed_queue=True
    )
    await queue.publish("good")
    await queue.publish("bad")
    await queue.publish("worse")
    await take(queue)
    await fail(queue)
    await fail(make_queue(client, "{shop}.orders", retry_delay_seconds=60))
    assert [key for key in raw.scan_iter() if not key.startswith(b"{shop}.orders")] == []


async def test_every_key_of_a_plain_queue_is_in_the_slot_of_its_name_or_a_log(
    client: StreamClient, raw: redis.Redis
) -> None:
    queue = make_queue(client)
    await queue.publish("hello")
    await fail(queue)
    assert [key for key in raw.scan_iter() if key != b"orders" and not key.startswith(b"{orders}:")] == []


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "must not be empty or blank"),
        ("   ", "must not be empty or blank"),
        ("nul\0inside", "must not contain line breaks or NUL"),
        ("a\nb", "must not contain line breaks or NUL"),
        ("q::dedup", "must not contain the key_separator '::'.*choose another name or another key_separator"),
        ("half \ud83d", "surrogate"),
        ("x" * 600, "more than the limit of 512"),
        ("brace{", "braces that do not form a hash tag"),
    ],
    ids=["empty", "blank", "nul", "line break", "separator", "surrogate", "long", "brace"],
)
async def test_a_name_that_cannot_be_is_refused(client: StreamClient, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        queue_named(client, name)
    assert isinstance(caught.value, ConfigurationError)
    assert not isinstance(caught.value, TypeError)


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("name", [42, None, b"orders", ["orders"]], ids=repr)
async def test_a_name_that_is_no_text_is_a_type_error(client: StreamClient, name: Any) -> None:
    with pytest.raises(TypeError, match=r"name must be a str, not \w+: use str"):
        queue_named(client, name)


@pytest.mark.usefixtures("default_server")
async def test_the_separator_is_checked_like_the_name(client: StreamClient) -> None:
    with pytest.raises(TypeError, match="key_separator must be a str, not int"):
        queue_named(client, "orders", key_separator=42)
    for blank in ("", "  "):
        with pytest.raises(ValueError, match="key_separator must not be empty or blank"):
            queue_named(client, "orders", key_separator=blank)
    with pytest.raises(ValueError, match="must not contain the key_separator '/'"):
        queue_named(client, "orders/eu", key_separator="/")


@pytest.mark.usefixtures("default_server")
async def test_no_two_names_lead_to_the_same_keys(client: StreamClient) -> None:
    names = ["orders", "orders:dedup", "orders_dlq", "{orders}", "orders.completed"]
    keys = [queue_named(client, name).key for name in names]
    spelled = [
        spelling
        for key in keys
        for spelling in (key.pending, key.completed, key.failed, key.dead_letter, key.processing)
    ]
    assert len(set(spelled)) == len(spelled)


@pytest.mark.usefixtures("default_server")
async def test_only_a_cluster_needs_a_hash_tag(client: StreamClient) -> None:
    key = queue_named(client, "orders").key
    with pytest.raises(ClusterSlotError, match=r"name it '\{orders\}'") as caught:
        key.check_one_slot()
    assert isinstance(caught.value, ValueError)
    queue_named(client, "{orders}").key.check_one_slot()
