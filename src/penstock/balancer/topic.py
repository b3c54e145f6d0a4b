"""Topic: one logical stream in several shards, of which each lies in a cluster slot of its own."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.keys import MAX_NAME, BalancerKeys, check_name
from penstock.number_checks import check_number

_MOST_SHARDS = 16_384
_ROOM = len("{:16383}")


@dataclass(frozen=True, slots=True)
class Topic:
    """A name and a number of shards.

    Messages with one key are in one shard, in the order in which they were published. The number is chosen once: with
    another one, keys would lie in other shards than their messages of before.
    """

    name: str
    shards: int

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_name("topic", self.name, MAX_NAME - _ROOM)
        if any(sign in self.name for sign in "{},"):
            raise ConfigurationError(f"topic {self.name!r} must not contain braces or commas: its shards do")
        check_number("shards", self.shards)
        if self.shards > _MOST_SHARDS:
            raise ConfigurationError(f"shards={self.shards} must be at most {_MOST_SHARDS}, the slots of a cluster")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of all shards."""
        return tuple(self.stream(number) for number in range(self.shards))

    @property
    def spark_pattern(self) -> str:
        """The shards as the option `subscribePattern` of the Spark source takes them, also those that are empty yet."""
        return rf"\{{{re.escape(self.name)}:\d+\}}"

    def stream(self, shard: int) -> str:
        """Return the stream of a shard; the whole name is the hash tag, so that shards spread over a cluster."""
        return f"{{{self.name}:{shard}}}"

    def shard_of(self, key: str) -> int:
        """Return the shard of a key: the same in every process and every release."""
        return zlib.crc32(key.encode()) % self.shards

    @property
    def keys(self) -> BalancerKeys:
        """The keys of the service that shares the shards out."""
        return BalancerKeys.of(self.name)
