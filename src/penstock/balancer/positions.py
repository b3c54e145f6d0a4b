"""How far the owners of a data stream have come: kept beside the stream, and closed to owners of the past."""

from __future__ import annotations

from penstock.errors import OwnershipLost
from penstock.keys import BalancerKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

BEGINNING = "0-0"
_KEPT_AFTER_THE_END_MS = 7 * 24 * 3600 * 1000


class Positions:
    """Reads and writes the positions of one service.

    Guarantees: from the moment at which an owner has opened a position, nothing that an owner before it says is heard.
    """

    def __init__(self, client: StreamClient, keys: BalancerKeys) -> None:
        self._client, self._keys = client, keys

    async def open(self, name: str, token: int) -> str:
        """Make the token known and return the last committed position."""
        return await self._write(name, token, "", "")

    async def commit(self, name: str, token: int, position: str) -> None:
        """Record a position."""
        await self._write(name, token, position, "")

    async def close(self, name: str, token: int) -> None:
        """Let the position of a finished stream run out, some day; adding the stream again before goes on from it."""
        await self._write(name, token, "", _KEPT_AFTER_THE_END_MS)

    async def _write(self, name: str, token: int, position: str, ttl_ms: int | str) -> str:
        key = self._keys.position(name)
        found, is_heard = await self._client.run(
            "balancer/position", [key], [token, position, ttl_ms], Repeat.IDEMPOTENT
        )
        if not is_heard:
            raise OwnershipLost(
                f"the position of {name!r} is refused: a newer owner has opened the stream (token {token} is old)"
            )
        return found.decode() or BEGINNING
