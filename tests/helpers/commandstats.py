"""What the server says about the commands that it has executed."""

from __future__ import annotations

import redis


def calls(raw: redis.Redis, command: str) -> int:
    """Returns how often the server has executed a command."""
    stats = raw.info("commandstats").get(f"cmdstat_{command.lower()}")
    return int(stats["calls"]) if stats else 0
