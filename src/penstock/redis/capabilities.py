"""What the server supports, determined from its commands: version strings mislead (Valkey 9.1 reports 7.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import UnsupportedServer

PROBED = ("WAITAOF", "XACKDEL", "XDELEX", "XNACK")
MINIMUM = "XAUTOCLAIM"  # came with 6.2, as did XTRIM MINID and XPENDING IDLE, which have no command of their own


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one server supports and how it stores its data; None = it may not be asked."""

    version: str
    product: str
    commands: frozenset[str]
    is_cluster: bool
    is_append_only: bool | None
    fsync: str | None
    eviction_policy: str | None

    def has(self, command: str) -> bool:
        """Return whether the server has one of the newer commands that were probed."""
        return command.upper() in self.commands

    def check_local_durability(self) -> None:
        """Raise UnsupportedServer for a server that cannot confirm that a write is on its disk."""
        if not self.has("WAITAOF"):
            raise UnsupportedServer(
                f"durability='local' needs WAITAOF, but {self.product} {self.version} does not have it, or this "
                "user may not run COMMAND INFO to check: use Redis 7.2, Valkey 7.2 or newer, or set "
                "durability='replicated' or 'fast'"
            )

    @property
    def may_evict(self) -> bool:
        """Whether the server may evict whole streams when memory is short."""
        return self.eviction_policy is not None and self.eviction_policy.startswith("allkeys")


def parse_info(text: str) -> dict[str, str]:
    """Parse the reply of INFO."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def known_commands(names: Sequence[str], replies: Sequence[object]) -> frozenset[str]:
    """Return the names that COMMAND INFO knows."""
    return frozenset(name for name, reply in zip(names, replies, strict=False) if reply)


def describe(info: dict[str, str], commands: frozenset[str], config: dict[str, str]) -> Capabilities:
    """Combine the replies."""
    is_valkey = "valkey_version" in info
    append_only = info.get("aof_enabled")
    return Capabilities(
        version=info.get("valkey_version") or info.get("redis_version", "unknown"),
        product="Valkey" if is_valkey else "Redis",
        commands=commands,
        is_cluster=info.get("cluster_enabled") == "1",
        is_append_only=None if append_only is None else append_only == "1",
        fsync=config.get("appendfsync"),
        eviction_policy=info.get("maxmemory_policy") or config.get("maxmemory-policy"),
    )
