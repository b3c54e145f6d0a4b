"""The keys of a message queue, and those of a queue of redis-message-queue, which the importer reads."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ClusterSlotError, ConfigurationError, ConfigurationTypeError
from penstock.keys.names import check_name, check_same_slot, hash_tag
from penstock.keys.stream import StreamKeys


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
                f"name={name!r} must not contain the key_separator {separator!r}, because two queues could then "
                "share keys: choose another name or another key_separator"
            )
        return cls(name, separator)

    @property
    def pending(self) -> str:
        """The stream of the messages."""
        return self.name

    @property
    def processing(self) -> str:
        """The messages in flight: not a real key, they are the pending entries of the stream's group."""
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
        """Raise ClusterSlotError unless all keys, also dead letters with another name, are in one cluster slot."""
        if hash_tag(self.name) is None:
            raise ClusterSlotError(
                f"queue {self.name!r} needs a hash tag in a Redis Cluster, so that all its keys are in one "
                f"slot: name it '{{{self.name}}}'"
            )
        if dead_letters is not None:
            check_same_slot(self.name, dead_letters, "dead_letter_queue")


@dataclass(frozen=True, slots=True)
class ListQueueKeys:
    """The keys of a queue of redis-message-queue, which keeps its messages in lists; the importer reads them."""

    name: str
    separator: str = "::"

    def _of(self, kind: str) -> str:
        return f"{self.name}{self.separator}{kind}"

    @property
    def pending(self) -> str:
        """List: waiting messages, the oldest at the right end."""
        return self._of("pending")

    @property
    def processing(self) -> str:
        """List: messages in flight."""
        return self._of("processing")

    @property
    def leases(self) -> tuple[str, ...]:
        """Sorted set of deadlines; hashes of tokens, delivery counts, and of claims by token, by claim, of tokens."""
        kinds = (
            "lease_deadlines", "lease_tokens", "delivery_counts",
            "claim_result_refs", "claim_result_ids", "claim_result_backrefs",
        )  # fmt: skip
        return tuple(f"{self.processing}:{kind}" for kind in kinds)

    def claim(self, claim_id: str) -> str:
        """String: the answer to a claim."""
        return f"{self.processing}:claim_result:{claim_id}"

    def log(self, kind: str) -> str:
        """List: `dlq`, `completed` or `failed`, the oldest at the right end."""
        return self._of(kind)

    def deduplication(self, key: str) -> str:
        """String: a message was published under the key."""
        return self._of(f"deduplication{self.separator}{key}")

    @staticmethod
    def aside(key: str) -> str:
        """List: the contents of a list whose key is now that of a stream."""
        return f"{key}:import"
