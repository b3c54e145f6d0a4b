"""The keys of a balanced service."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.keys.names import MAX_NAME, check_braces, check_name, tagged

MUTEX_KEY_SEP = "<MUTEX_KEY_SEP>"
CONSUMER_PREFIX = "redis-consumer-"


@dataclass(frozen=True, slots=True)
class BalancerKeys:
    """The keys of one balanced service.

    The stream, its group and the locks are spelled as redis-stream-client-go spells them, without the prefix of a
    client; what Penstock adds shares the slot of the stream or, for a position, that of the data stream.
    """

    service: str

    @classmethod
    def of(cls, service: str) -> BalancerKeys:
        """Return the keys of a service with the name that users give it."""
        check_name("service", service, MAX_NAME - len("-input"))
        check_braces("service", service, "{billing}")
        return cls(service)

    @property
    def stream(self) -> str:
        """Stream: one entry for each data stream that needs an owner (the load balancer stream, LBS)."""
        return f"{self.service}-input"

    @property
    def group(self) -> str:
        """The consumer group of the service."""
        return f"{self.service}-group"

    @property
    def _base(self) -> str:
        return tagged(self.stream)

    @property
    def owners(self) -> str:
        """Hash: data stream -> the entry that is owned, or waits for an owner; later ones of the same name wait."""
        return f"{self._base}:owners"

    @property
    def peers(self) -> str:
        """Hash: consumer -> until when it counts as alive, how many streams it owns, how many it can own."""
        return f"{self._base}:peers"

    @property
    def token(self) -> str:
        """String: the last fencing token."""
        return f"{self._base}:token"

    def request(self, request_id: str) -> str:
        """String with a TTL: the entry that a call of add_stream() added, in case its reply is lost."""
        return f"{self._base}:request:{request_id}"

    @property
    def shards(self) -> str:
        """Hash: shard of a topic -> its entry."""
        return f"{self._base}:shards"

    @property
    def dead_letters(self) -> str:
        """Stream: entries that name no data stream, or were handed out too often."""
        return f"{self._base}_dlq"

    @staticmethod
    def lock(data_stream: str, entry_id: str) -> str:
        """String with a TTL: the consumer that owns the data stream."""
        return f"{data_stream}{MUTEX_KEY_SEP}{entry_id}"

    @staticmethod
    def split_lock(key: str) -> tuple[str, str] | None:
        """Return data stream and entry id of a lock, or None if the key is not a lock."""
        data_stream, separator, entry_id = key.rpartition(MUTEX_KEY_SEP)
        return (data_stream, entry_id) if separator and data_stream and entry_id else None

    def position(self, data_stream: str) -> str:
        """Hash: the committed position in a data stream, and the token of its newest owner."""
        return f"{tagged(data_stream)}:balancer:{self.service}"

    @staticmethod
    def dead_letters_of(data_stream: str, *, is_cluster: bool) -> str:
        """Stream: entries of a data stream that cannot be decoded; in a cluster, in the slot of the stream."""
        return f"{tagged(data_stream) if is_cluster else data_stream}_dlq"
