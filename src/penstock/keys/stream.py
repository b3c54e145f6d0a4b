"""The keys around one stream."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.keys.names import check_braces, check_name, tagged


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys around one stream."""

    stream: str

    @classmethod
    def of(cls, stream: str, prefix: str = "") -> StreamKeys:
        """Return the keys of a stream with the name that users give it."""
        check_name("stream", stream)
        if prefix:
            check_name("prefix", prefix)
        key = f"{prefix}_{stream}" if prefix else stream
        check_braces("stream", key, "{orders}_main")
        return cls(key)

    @property
    def _base(self) -> str:
        return tagged(self.stream)

    def producer(self, producer_id: str) -> str:
        """String: sequence number and ids of the last batch of one producer."""
        return f"{self._base}:producer:{producer_id}"

    def dedup(self, dedup_key: str) -> str:
        """String: id of the entry that was published under the key."""
        return f"{self._base}:dedup:{dedup_key}"

    def attempts(self, group: str) -> str:
        """Hash: entry id -> number of attempts, for entries that were not finished in the first."""
        return f"{self._base}:attempts:{group}"

    def retries(self, group: str) -> str:
        """Sorted set: entry id, scored by the time in ms at which it is retried."""
        return f"{self._base}:retries:{group}"

    def position(self, group: str) -> str:
        """String: the position and the pending entries of the group, in case it must be recreated."""
        return f"{self._base}:position:{group}"

    def worker(self, group: str, name: str) -> str:
        """String: incarnation of the process that runs under a name given by the user."""
        return f"{self._base}:worker:{_pair(group, name)}"

    def chore(self, chore: str, group: str) -> str:
        """String with a TTL: some consumer of the group did the chore in this interval."""
        return f"{self._base}:chore:{_pair(chore, group)}"

    def operation(self, token: str) -> str:
        """String with a TTL: the outcome of an operation, for a caller that lost the reply and asks again."""
        return f"{self._base}:operation:{token}"

    def spark(self, query: str) -> str:
        """Hash: the runs of a Spark query, or of a named batch write, and the progress of its partitions."""
        return f"{self._base}:spark:{query}"

    def spark_dead_lettered(self, batch: str) -> str:
        """Set with a TTL, next to a dead-letter stream: the entries that a batch of a Spark pipeline has given up."""
        return f"{self._base}:spark-buried:{batch}"

    def spark_begun(self, batch: str) -> str:
        """Hash with a TTL, next to a dead-letter stream: what tasks of a Spark pipeline have begun and not ended."""
        return f"{self._base}:spark-begun:{batch}"

    def default_dead_letters(self) -> str:
        """The dead-letter stream that is used when none is named."""
        return f"{self.stream}_dlq"


def _pair(first: str, second: str) -> str:
    # Either may contain a colon, so the length of the first one marks where it ends.
    is_clear = ":" not in first and ":" not in second
    return f"{first}:{second}" if is_clear else f"{len(first)}:{first}:{second}"
