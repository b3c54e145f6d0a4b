"""The streams that are read: small JSON orders, written as fast as redis-py can."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator

import redis

PAYLOAD_DDL = "order_id bigint, customer string, total double, paid boolean, quantity int, country string, note string"
_CHUNK = 2_000


def payload(number: int) -> bytes:
    """Returns an order of about 165 bytes."""
    return json.dumps(
        {
            "order_id": number,
            "customer": f"customer-{number % 5_000}",
            "total": number % 1_000 + 0.5,
            "paid": number % 3 == 0,
            "quantity": number % 9 + 1,
            "country": "NL",
            "note": "x" * 40,
        }
    ).encode()


def dense_payload(number: int) -> bytes:
    """Returns an order of about the same size whose note is random: what is written to disk stays as big as in life."""
    note = base64.b64encode(random.Random(number).randbytes(75)).decode()  # the same in every run
    return json.dumps({"order_id": number, "customer": f"customer-{number % 5_000}", "note": note}).encode()


def fill(client: redis.Redis, names: list[str], each: int, payload: Callable[[int], bytes] = payload) -> None:
    """Adds so many entries to each stream."""
    pipe = client.pipeline(transaction=False)
    for waiting, (name, number) in enumerate(_entries(names, each), 1):
        pipe.execute_command("XADD", name, "*", "data", payload(number))
        if waiting % _CHUNK == 0:
            pipe.execute()
    pipe.execute()


def _entries(names: list[str], each: int) -> Iterator[tuple[str, int]]:
    return ((name, number) for name in names for number in range(each))
