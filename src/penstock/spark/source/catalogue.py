"""Which streams a query reads, what the server knows of them without looking at an entry, and what of them is gone.

XTRIM leaves no trace but the counters: entries ever added, less those present, were removed. A position with a rank
therefore shows exactly whether anything after it is missing. Servers before 7.0 do not count;
there only an entry at or before the position proves that nothing after it was removed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import ids
from penstock.errors import ConfigurationError, DataLost, GroupLost, PenstockError, StreamMissing
from penstock.keys import StreamKeys, check_name
from penstock.redis.aio import Reply
from penstock.spark.runtime.link import retry
from penstock.spark.source.offsets import Position
from penstock.sync.redis.client import StreamClient
from penstock.sync.redis.reading import escaped, read_many, stream_keys

logger = logging.getLogger("penstock.spark")
_CONTINUING = "continuing without them (failOnDataLoss=false)"
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
                "name the streams to read: option streams='orders', 'orders,payments' or 'orders:*', or option "
                "subscribePattern with a regular expression; exactly one of them"
            )
        if regex is not None:
            try:
                re.compile(regex)
            except re.error as error:
                raise ConfigurationError(
                    f"option subscribePattern={regex!r} is not a regular expression: {error}"
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
        keys = stream_keys(client, escaped(prefix) + (self.glob or "*"))
        found = [key.removeprefix(prefix) for key in keys]
        return [name for name in found if self.regex is None or re.fullmatch(self.regex, name)]


def naming(names: Sequence[str]) -> dict[str, str]:
    """Return the option that names exactly these streams: one whose name reads like a pattern or a list is matched."""
    text = ",".join(names)
    if _GLOB.search(text) or any("," in name or name != name.strip() for name in names):
        return {"subscribePattern": "|".join(map(re.escape, names))}
    return {"streams": text}


@dataclass(frozen=True)
class StreamState:
    """What the server says of a stream. `added` and `last_deleted` are unknown before Redis 7.0."""

    length: int
    last_id: str
    first_id: str | None
    added: int | None
    last_deleted: str | None

    @property
    def end(self) -> Position:
        """The position after the newest entry that there ever was."""
        return Position(self.last_id, self.added)

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


def newest_dead_letter(client: StreamClient, stream: str) -> str:
    """Return the id of the newest dead letter of a stream; raise StreamMissing if it never had any."""
    name = StreamKeys(stream).default_dead_letters()
    state = retry(lambda: look(client, [name]))[name]
    if state is None:
        raise StreamMissing(f"stream {stream!r} has no dead letters: stream {name!r} does not exist")
    return state.last_id


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
            f"stream {', '.join(map(repr, missing[:5]))} does not exist in Redis at {client.settings.where}; "
            "check the name and the database, or set option waitForStreams=true to start when it appears"
        )


@dataclass(frozen=True)
class Gap:
    """Entries of a stream that can no longer be read."""

    stream: str
    after: str
    before: str  # '' = up to the end
    count: int | None  # None = unknown, possibly none
    is_exact: bool
    why: str
    resume: Position  # where reading can continue

    def __str__(self) -> str:
        """Describe what is lost."""
        number = "an unknown number of" if self.count is None else f"{'' if self.is_exact else 'up to '}{self.count:,}"
        upto = f"and before {self.before}" if self.before else "up to its end"
        return f"stream {self.stream!r}: {number} entries after {self.after} {upto} are lost: {self.why}"


def find_gap(stream: str, at: Position, state: StreamState | None) -> Gap | None:
    """Return what is missing after a position, or None."""
    here = ids.parse(at.id)
    if state is None:
        if at.id == ids.ZERO:
            return None
        return Gap(stream, at.id, "", None, False, "the stream was deleted", Position(ids.ZERO, 0))
    if _is_another(at, state):
        why = "the stream was deleted and created again, or the server lost its newest entries"
        return Gap(stream, at.id, state.first_id or "", None, False, why, beginning(state))
    if state.first_id is not None and ids.parse(state.first_id) <= here:
        return None
    if state.removed is not None and at.rank is not None:
        return _counted(stream, at, state, state.removed - at.rank)
    return _uncounted(stream, at, state)


def _is_another(at: Position, state: StreamState) -> bool:
    # A query may begin at a time that has not come: where the server counts, to be ahead of the stream says nothing.
    if at.rank is not None and state.added is not None:
        return state.added < at.rank or _has_too_many(at, at.rank, state)
    return ids.parse(state.last_id) < ids.parse(at.id)


def _has_too_many(at: Position, rank: int, state: StreamState) -> bool:
    # All entries are after the position, and fewer were removed than lay before it: they are not those of that stream.
    if state.first_id is None or state.removed is None or ids.parse(state.first_id) <= ids.parse(at.id):
        return False
    return state.removed < rank


def _counted(stream: str, at: Position, state: StreamState, lost: int) -> Gap | None:
    if lost <= 0:
        return None
    deleted_since = state.last_deleted is not None and ids.parse(state.last_deleted) > ids.parse(at.id)
    why = "trimmed, or deleted one by one," if deleted_since else "trimmed"
    return Gap(
        stream, at.id, state.first_id or "", lost, not deleted_since, f"they were {why} before they were read",
        beginning(state),
    )  # fmt: skip


def _uncounted(stream: str, at: Position, state: StreamState) -> Gap | None:
    nothing_since = state.first_id is None and state.last_id == at.id
    is_next = state.first_id is not None and ids.parse(state.first_id) == ids.parse(ids.after(at.id))
    if at.id == ids.ZERO or nothing_since or is_next:
        return None
    why = (
        "the entry at the position was trimmed, and the server does not count how many others were"
        if state.removed is None
        else "they were trimmed or deleted before they were read"
    )
    return Gap(stream, at.id, state.first_id or "", None, False, why, beginning(state))


def report_loss(lost: object, hint: str, *, fails: bool, then: str = _CONTINUING) -> None:
    """Raise DataLost, with a hint, if a query must not continue without what is lost; log it otherwise."""
    if fails:
        raise DataLost(f"{lost}. {hint}")
    logger.warning("%s; %s", lost, then)


def beginning(state: StreamState) -> Position:
    """Return the position before the first entry that is left."""
    if state.first_id is None:
        return state.end
    return Position(ids.before(state.first_id), state.removed)
