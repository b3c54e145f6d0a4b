"""Publishing from a test, with a producer of either half."""

from __future__ import annotations

import asyncio
from typing import Any

import penstock
from penstock import sync


def push_many(half: str, url: str, stream: str, bodies: list[Any], **options: Any) -> list[str]:
    """Publishes bodies with a producer of its own and returns their ids."""
    if half == "async":
        return asyncio.run(_push_many(url, stream, bodies, options))
    with sync.StreamClient.from_url(url) as client:
        return sync.StreamProducer(client, stream, **options).push_many(bodies)


async def _push_many(url: str, stream: str, bodies: list[Any], options: dict[str, Any]) -> list[str]:
    async with penstock.StreamClient.from_url(url) as client:
        return await penstock.StreamProducer(client, stream, **options).push_many(bodies)


def push(half: str, url: str, stream: str, data: Any, push: dict[str, Any] | None = None, **options: Any) -> str:
    """Publishes one body, with these options of push(), and returns its id."""
    if half == "async":
        return asyncio.run(_push(url, stream, data, push or {}, options))
    with sync.StreamClient.from_url(url) as client:
        return sync.StreamProducer(client, stream, **options).push(data, **(push or {}))


async def _push(url: str, stream: str, data: Any, push: dict[str, Any], options: dict[str, Any]) -> str:
    async with penstock.StreamClient.from_url(url) as client:
        return await penstock.StreamProducer(client, stream, **options).push(data, **push)
