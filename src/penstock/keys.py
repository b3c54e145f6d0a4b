"""Every Redis key that Penstock uses is spelled here.

All keys of one stream share its hash tag, so that one script may touch them in a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ClusterSlotError, ConfigurationError, ConfigurationTypeError

MAX_NAME = 512
_FORBIDDEN = "\0\r\n"


def check_name(what: str, name: str, max_length: int = MAX_NAME) -> str:
    """Return the name if it can be a key or a group, else raise ConfigurationError."""
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} must be a str, not {type(name).__name__}")
    if not name or not name.strip():
        raise ConfigurationError(f"{what} must not be empty or blank: give it a name such as 'orders'")
    if not is_utf8(name):
        raise ConfigurationError(f"{what} must be text that UTF-8 can hold, without lone surrogates: {name[:40]!r}")
    if len(name.encode()) > max_length:
        raise ConfigurationError(
            f"{what} has {len(name.encode())} bytes, at most {max_length} are allowed: {name[:40]!r}..."
        )
    if any(c in name for c in _FORBIDDEN):
        raise ConfigurationError(f"{what} must not contain line breaks or NUL: {name!r}")
    return name


def is_utf8(text: str) -> bool:
    """Tell whether the text can be sent: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def hash_tag(key: str) -> str | None:
    """Return the part of the key that a cluster hashes, or None if it hashes the whole key."""
    start = key.find("{")
    if start < 0:
        return None
    end = key.find("}", start + 1)
    return key[start + 1 : end] if end > start + 1 else None


def hashed_part(key: str) -> str:
    """Return what the cluster hashes of the key."""
    tag = hash_tag(key)
    return key if tag is None else tag


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys around one stream."""

    stream: str

    @classmethod
    def of(cls, stream: str, prefix: str = "") -> StreamKeys:
        """Spell the keys of a stream as the user names it."""
        check_name("stream", stream)
        if prefix:
            check_name("prefix", prefix)
        key = f"{prefix}_{stream}" if prefix else stream
        if hash_tag(key) is None and ("{" in key or "}" in key):
            # Braces that are no hash tag would make "{key}" hash differently from the key itself.
            raise ConfigurationError(
                f"stream {key!r} contains braces that are no hash tag; write a tag as in '{{orders}}_main' or none"
            )
        return cls(key)

    @property
    def _base(self) -> str:
        return self.stream if hash_tag(self.stream) is not None else f"{{{self.stream}}}"

    def producer(self, producer_id: str) -> str:
        """String: sequence number and ids of the last batch of one producer."""
        return f"{self._base}:producer:{producer_id}"

    def dedup(self, dedup_key: str) -> str:
        """String: id of the entry that was published under the key."""
        return f"{self._base}:dedup:{dedup_key}"

    def attempts(self, group: str) -> str:
        """Hash: entry id -> how often a handler began, for entries that did not end with the first run."""
        return f"{self._base}:attempts:{group}"

    def retries(self, group: str) -> str:
        """Sorted set: entry id, scored by the time in ms at which it is due again."""
        return f"{self._base}:retries:{group}"

    def position(self, group: str) -> str:
        """String: what the group had been handed and what was pending, should it have to be created again."""
        return f"{self._base}:position:{group}"

    def worker(self, group: str, name: str) -> str:
        """String: incarnation of the process that runs under a name given by the user."""
        return f"{self._base}:worker:{group}:{name}"

    def chore(self, chore: str, group: str) -> str:
        """String with a TTL: some consumer of the group did the chore in this interval."""
        return f"{self._base}:chore:{chore}:{group}"

    def operation(self, token: str) -> str:
        """String with a TTL: what came of an operation, for whoever lost the reply and asks again."""
        return f"{self._base}:operation:{token}"

    def spark(self, query: str) -> str:
        """Hash: the runs of a Spark query, or of a batch write under a name, and how far its partitions have come."""
        return f"{self._base}:spark:{query}"

    def default_dead_letters(self) -> str:
        """The dead-letter stream that is used when none is named."""
        return f"{self.stream}_dlq"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The names of a message queue as users see them; the messages themselves are in the stream of its name."""

    name: str
    separator: str = "::"

    @classmethod
    def of(cls, name: str, separator: str = "::") -> QueueKeys:
        """Check the name and the separator."""
        for what, value in (("name", name), ("key_separator", separator)):
            if not isinstance(value, str):
                raise ConfigurationTypeError(f"{what} must be a str, not {type(value).__name__}: use str({value!r})")
        check_name("key_separator", separator)
        StreamKeys.of(name)
        if separator in name:
            raise ConfigurationError(
                f"name={name!r} must not contain the key_separator {separator!r}, or keys of two queues could be the "
                f"same: choose another name or another key_separator"
            )
        return cls(name, separator)

    @property
    def pending(self) -> str:
        """The stream of the messages."""
        return self.name

    @property
    def processing(self) -> str:
        """What is in flight: not a key of its own, but the pending entries of the stream's group."""
        return f"{self.name}{self.separator}processing"

    @property
    def completed(self) -> str:
        """Stream: the log of completed messages."""
        return f"{self.name}{self.separator}completed"

    @property
    def failed(self) -> str:
        """Stream: the log of failures."""
        return f"{self.name}{self.separator}failed"

    @property
    def dead_letter(self) -> str:
        """Stream: the dead letters."""
        return f"{self.name}{self.separator}dlq"

    def deduplication(self, key: str) -> str:
        """String: id of the message that was published under the key."""
        return StreamKeys.of(self.name).dedup(key)

    def check_one_slot(self, dead_letters: str | None = None) -> None:
        """Raise ClusterSlotError unless a cluster keeps all of it in one place, also dead letters of another name."""
        if hash_tag(self.name) is None:
            raise ClusterSlotError(
                f"queue {self.name!r} needs a hash tag in a Redis Cluster, which keeps its keys together: "
                f"name it '{{{self.name}}}'"
            )
        if dead_letters is not None:
            check_same_slot(self.name, dead_letters, "dead_letter_queue")


def check_same_slot(stream: str, other: str, what: str) -> None:
    """Raise ClusterSlotError unless both keys are in one cluster slot."""
    if hashed_part(stream) != hashed_part(other):
        raise ClusterSlotError(
            f"{what} {other!r} and stream {stream!r} are in different cluster slots: "
            f"name them with one hash tag, for example '{{orders}}_main' and '{{orders}}_dlq'"
        )
