"""Queues of redis-message-queue 5.0, as that library left them in a server: recorded, key by key, from a real run.

`abandoned` is a queue `orders` whose consumers died: one message in flight, four waiting, a dead letter, both logs.
`held` has a message of `orders` under a lease, and `parcels`, a queue without leases, one in flight.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

_RECORDED = Path(__file__).with_name("redis_message_queue_5_0.json")


def restore(raw: redis.Redis, picture: str, lease_ms: int = -1_000, name: str = "orders") -> None:
    """Writes a recorded queue into a server; its leases end so many ms from now, and `orders` may be called else."""
    text = json.dumps(json.loads(_RECORDED.read_text())[picture]).replace("orders::", f"{name}::")
    for key, found in json.loads(text).items():
        _write(raw, key, found["type"], _raw(found["value"]), lease_ms)
        if found["pttl"] > 0:
            raw.pexpire(key, found["pttl"])


def _write(raw: redis.Redis, key: str, kind: str, value: Any, lease_ms: int) -> None:
    if kind == "list":
        raw.rpush(key, *value)
    elif kind == "string":
        raw.set(key, value)
    elif kind == "hash":
        raw.hset(key, mapping=value)
    else:
        raw.zadd(key, dict.fromkeys(value, time.time() * 1000 + lease_ms))


def _raw(value: Any) -> Any:
    # JSON has no bytes: every character stands for one.
    if isinstance(value, str):
        return value.encode("latin-1")
    if isinstance(value, list):
        return [_raw(item) for item in value]
    return {_raw(name): _raw(item) for name, item in value.items()} if isinstance(value, dict) else value


def stored(payload: str, message_id: str) -> bytes:
    """Returns a message in the envelope of that library."""
    return b"\x1eRMQ1:" + json.dumps({"id": message_id, "payload": payload}, separators=(",", ":")).encode()
