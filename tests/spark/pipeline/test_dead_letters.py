"""The dead letters of a pipeline, written as its tasks write them, without Java."""

from __future__ import annotations

import pytest
import redis

from penstock.policy import Reason
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.dead_letters import DeadLetterWriter, Failure
from penstock.spark.pipeline.plan import dead_letter_config
from penstock.sync import StreamClient
from tests.helpers.hostile import MANY_FIELDS, wide

pytestmark = pytest.mark.usefixtures("default_server")


@pytest.mark.parametrize("count", MANY_FIELDS)
def test_an_entry_of_very_many_fields_is_given_up_once_with_what_matters(
    redis_url: str, raw: redis.Redis, count: int
) -> None:
    entry_id = raw.xadd("orders", wide(count, data="no json")).decode()
    with StreamClient.from_url(redis_url) as client:
        for _ in range(2):
            DeadLetterWriter(client, "shop", lambda _: "batch 1").dead_letter(
                "orders", entry_id, None, Failure(Reason.DECODE_ERROR)
            )
    [(_, record)] = raw.xrange("orders_dlq")
    assert (record[b"data"], record[b"dlq_id"], record[b"field-1999"]) == (b"no json", entry_id.encode(), b"1999")
    assert record[b"dlq_cut"].startswith(b"%d fields" % (count - 2_000))


def test_the_newest_dead_letters_are_kept(redis_url: str, raw: redis.Redis) -> None:
    text = f"""
name = "shop"
checkpoint = "/tmp/nowhere"
[source]
url = "{redis_url}"
streams = ["orders"]
schema = "n INT"
dead_letter_limits = {{ max_count = 3 }}
[[sink]]
kind = "console"
"""
    writer = dead_letter_config(Pipeline.from_toml(text)).writer("batch 1")
    ids = [raw.xadd("orders", {"data": "no json"}) for _ in range(8)]
    for entry_id in ids:
        writer.dead_letter("orders", entry_id.decode(), None, Failure(Reason.DECODE_ERROR))
        writer.dead_letter("orders", entry_id.decode(), None, Failure(Reason.DECODE_ERROR))
    assert [record[b"dlq_id"] for _, record in raw.xrange("orders_dlq")] == ids[5:]
