"""Entries about data streams, in the JSON of redis-stream-client-go; notices; topics and their shards."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from penstock.errors import ConfigurationError, EncodeError, MalformedEntry, PayloadTooLarge, text_of
from penstock.keys import MAX_NAME, MUTEX_KEY_SEP, BalancerKeys, check_name
from penstock.number_checks import check_number
from penstock.serializers import DEFAULT_MAX_BYTES

FIELD = "lbs-input"
_NAME, _INFO = "DataStreamName", "Info"
_MAX_SHARDS = 16_384
_ROOM = len("{:16383}")

Info: TypeAlias = Mapping[str, Any]
"""Information that is added with a data stream: any JSON object."""


@dataclass(frozen=True, slots=True)
class LBSInfo:
    """One data stream, and its entry in the load balancer stream."""

    data_stream_name: str
    id_in_lbs: str

    @property
    def lock(self) -> str:
        """The key whose holder owns the data stream."""
        return BalancerKeys.lock(self.data_stream_name, self.id_in_lbs)


@dataclass(frozen=True, slots=True)
class LBSInputMessage:
    """An entry of the load balancer stream: a data stream that needs an owner."""

    data_stream_name: str
    info: Info | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a name that cannot be a key."""
        check_name("data_stream_name", self.data_stream_name)

    def encode(self) -> bytes:
        """Return the value of the field `lbs-input`."""
        if MUTEX_KEY_SEP in self.data_stream_name:
            # A Go peer splits the key of a lock at the first separator, and would find another name.
            raise ConfigurationError(
                f"data stream {self.data_stream_name!r} must not contain {MUTEX_KEY_SEP!r}: choose another name"
            )
        if self.info is not None and not isinstance(self.info, Mapping):
            raise EncodeError(f"info must be a mapping or None, not {type(self.info).__name__}")
        message = {_NAME: self.data_stream_name, _INFO: None if self.info is None else dict(self.info)}
        try:
            raw = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(
                f"info of {self.data_stream_name!r} cannot be encoded as JSON: {text_of(error)}"
            ) from error
        if len(raw) > DEFAULT_MAX_BYTES:
            raise PayloadTooLarge(
                f"info of {self.data_stream_name!r} has {len(raw)} bytes, more than the limit of "
                f"{DEFAULT_MAX_BYTES}: publish it in the data stream instead"
            )
        return raw

    @classmethod
    def decode(cls, value: bytes) -> LBSInputMessage:
        """Decode a value as a Go peer does: keys in any case, unknown keys ignored, `Info` optional.

        Raises MalformedEntry when it names no data stream.
        """
        if len(value) > DEFAULT_MAX_BYTES:
            raise MalformedEntry(f"{FIELD} has {len(value)} bytes, more than the limit of {DEFAULT_MAX_BYTES}")
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise MalformedEntry(f"{FIELD} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise MalformedEntry(f"{FIELD} must be a JSON object, not {type(found).__name__}")
        by_name = {key.casefold(): item for key, item in found.items()}
        name, info = by_name.get(_NAME.casefold()), by_name.get(_INFO.casefold())
        if not isinstance(name, str) or not name:
            raise MalformedEntry(f"{FIELD} names no data stream: {_NAME} must be a non-empty string")
        if info is not None and not isinstance(info, dict):
            raise MalformedEntry(f"{_INFO} of {name!r} must be a JSON object or null, not {type(info).__name__}")
        try:
            return cls(name, info)
        except ConfigurationError as error:
            raise MalformedEntry(str(error)) from error

    @classmethod
    def of_entry(cls, fields: Sequence[bytes]) -> LBSInputMessage:
        """Read the fields of an entry; ignore others."""
        for index in range(len(fields) - 2, -1, -2):  # of fields with the same name, the last one counts
            if fields[index] == FIELD.encode():
                return cls.decode(fields[index + 1])
        raise MalformedEntry(f"the entry has no field {FIELD}")


# --- to the application ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of a data stream."""

    type: ClassVar[int] = 0
    """The number of the kind, as in redis-stream-client-go."""

    payload: LBSInfo
    additional_info: Info | None = None


@dataclass(frozen=True, slots=True)
class StreamAdded(Notice):
    """This consumer now owns a data stream; `token` is greater than that of every earlier owner."""

    type: ClassVar[int] = 1
    token: int = 0


@dataclass(frozen=True, slots=True)
class StreamDisowned(Notice):
    """Another consumer now owns the data stream: stop working on it."""

    type: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class StreamExpired(Notice):
    """The owner of a data stream is gone: the stream can be claimed."""

    type: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class StreamTerminated(Notice):
    """The last notice; `additional_info["info"]` is the reason."""

    type: ClassVar[int] = 4


def terminated(reason: str) -> StreamTerminated:
    """Return the last notice."""
    return StreamTerminated(LBSInfo("", ""), {"info": reason})


# --- topics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topic:
    """A name and a number of shards.

    Messages with the same key are in one shard, in the order of publishing. The number of shards cannot be changed:
    keys would move to other shards than their earlier messages.
    """

    name: str
    shards: int

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_name("topic", self.name, MAX_NAME - _ROOM)
        if any(sign in self.name for sign in "{},"):
            raise ConfigurationError(
                f"topic {self.name!r} must not contain braces or commas, which have a "
                "meaning in the names of its shards"
            )
        check_number("shards", self.shards)
        if self.shards > _MAX_SHARDS:
            raise ConfigurationError(f"shards={self.shards} must be at most {_MAX_SHARDS}, the number of cluster slots")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of all shards."""
        return tuple(self.stream(number) for number in range(self.shards))

    @property
    def spark_pattern(self) -> str:
        """All shards, including empty ones, as the option `subscribePattern` of the Spark source."""
        return rf"\{{{re.escape(self.name)}:\d+\}}"

    def stream(self, shard: int) -> str:
        """Return the stream of a shard; the whole name is the hash tag, which spreads the shards over a cluster."""
        return f"{{{self.name}:{shard}}}"

    def shard_of(self, key: str) -> int:
        """Return the shard of a key, which is the same in every process and release."""
        return zlib.crc32(key.encode()) % self.shards

    @property
    def keys(self) -> BalancerKeys:
        """The keys of the service that distributes the shards."""
        return BalancerKeys.of(self.name)

    @staticmethod
    def check_prefix(prefix: str) -> None:
        """Raise ConfigurationError for a client with a prefix, which would change the names of shards."""
        if prefix:
            raise ConfigurationError(
                f"topics need a client without prefix={prefix!r}: all peers must use the same stream names"
            )

    def check_known(self, shards: int) -> None:
        """Raise ConfigurationError if the topic is known with another number of shards."""
        if shards != self.shards:
            raise ConfigurationError(
                f"topic {self.name!r} has {shards} shards, not {self.shards}; with another number, keys would "
                f"move to other shards: use Topic({self.name!r}, shards={shards}), or another name"
            )
