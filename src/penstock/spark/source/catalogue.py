"""Which streams a query reads, and what the server knows of them without looking at an entry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.errors import ConfigurationError, GroupLost, PenstockError, StreamMissing
from penstock.keys import check_name
from penstock.redis.aio import Reply
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import read_many, stream_keys

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class StreamSelection:
    """Streams by name, or by a pattern that new streams may match later."""

    names: tuple[str, ...] = ()
    glob: str | None = None
    regex: str | None = None

    @classmethod
    def parse(cls, streams: str | None, regex: str | None) -> StreamSelection:
        """Take the option `streams` (one, many or a glob pattern) or `subscribePattern` (a regular expression)."""
        if (streams is None) == (regex is None):
            raise ConfigurationError(
                "say which streams to read: option streams='orders', 'orders,payments' or 'orders:*', or option "
                "subscribePattern with a regular expression; exactly one of them"
            )
        if regex is not None:
            try:
                re.compile(regex)
            except re.error as error:
                raise ConfigurationError(
                    f"option subscribePattern={regex!r} is no regular expression: {error}"
                ) from None
            return cls(regex=regex)
        assert streams is not None
        if _GLOB.search(streams):
            return cls(glob=check_name("option streams", streams.strip()))
        names = tuple(dict.fromkeys(name.strip() for name in streams.split(",") if name.strip()))
        for name in names or ("",):
            check_name("option streams", name)
        return cls(names)

    @property
    def is_pattern(self) -> bool:
        """Whether streams are looked for."""
        return not self.names

    def find(self, client: StreamClient) -> list[str]:
        """Return the names of the streams, whether or not those that are named exist."""
        if self.names:
            return list(self.names)
        prefix = f"{client.prefix}_" if client.prefix else ""
        keys = stream_keys(client, _escaped(prefix) + (self.glob or "*"))
        found = [key.removeprefix(prefix) for key in keys]
        return [name for name in found if self.regex is None or re.fullmatch(self.regex, name)]


def naming(names: Sequence[str]) -> dict[str, str]:
    """Return the option that names exactly these streams: one whose name reads like a pattern or a list is matched."""
    text = ",".join(names)
    if _GLOB.search(text) or any("," in name or name != name.strip() for name in names):
        return {"subscribePattern": "|".join(map(re.escape, names))}
    return {"streams": text}


def _escaped(prefix: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix)


@dataclass(frozen=True)
class StreamState:
    """What the server says of a stream. `added` and `last_deleted` are unknown before Redis 7.0."""

    length: int
    last_id: str
    first_id: str | None
    added: int | None
    last_deleted: str | None

    @property
    def removed(self) -> int | None:
        """How many entries are gone, by trimming or deletion."""
        return None if self.added is None else self.added - self.length


def look(client: StreamClient, names: Sequence[str]) -> dict[str, StreamState | None]:
    """Return the state of each stream, None for one that does not exist."""
    keys = [client.keys(name).stream for name in names]
    replies = read_many(client, [(key, ("XINFO", "STREAM", key)) for key in keys])
    states: dict[str, StreamState | None] = {}
    for name, reply in zip(names, replies, strict=True):
        if isinstance(reply, GroupLost):  # "no such key"
            states[name] = None
        elif isinstance(reply, PenstockError):
            raise reply
        else:
            states[name] = _state(reply)
    return states


def _state(reply: Reply) -> StreamState:
    by_name = {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}

    def text(name: str) -> str | None:
        value = by_name.get(name)
        return value.decode() if isinstance(value, bytes) else None

    first = by_name.get("first-entry")
    added = by_name.get("entries-added")
    return StreamState(
        length=int(by_name["length"]),
        last_id=text("last-generated-id") or ids.ZERO,
        first_id=first[0].decode() if first else None,
        added=int(added) if added is not None else None,
        last_deleted=text("max-deleted-entry-id"),
    )


def look_at_group(client: StreamClient, stream: str, group: str) -> dict[bytes, Reply] | None:
    """Return what the server says of a consumer group, None if there is none of this name."""
    key = client.keys(stream).stream
    for row in client.call(key, "XINFO", "GROUPS", key):
        info = dict(zip(row[::2], row[1::2], strict=True))
        if info[b"name"] == group.encode():
            return info
    return None


def require(states: Mapping[str, StreamState | None], client: StreamClient) -> None:
    """Raise StreamMissing if one of the streams does not exist."""
    missing = [name for name, state in states.items() if state is None]
    if missing:
        raise StreamMissing(
            f"there is no stream {', '.join(map(repr, missing[:5]))} in Redis at {client.settings.where}; check the "
            "name and the database, or set option waitForStreams=true to begin when it appears"
        )
