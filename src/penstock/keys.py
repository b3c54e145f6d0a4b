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

    def spark_buried(self, batch: str) -> str:
        """Set with a TTL, beside a dead-letter stream: the entries that a batch of a Spark pipeline has given up."""
        return f"{self._base}:spark-buried:{batch}"

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
        """Spell the keys of a service as the user names it."""
        check_name("service", service, MAX_NAME - len("-input"))
        if hash_tag(service) is None and ("{" in service or "}" in service):
            raise ConfigurationError(
                f"service {service!r} contains braces that are no hash tag; write a tag as in '{{billing}}' or none"
            )
        return cls(service)

    @property
    def stream(self) -> str:
        """Stream: one entry for each data stream that wants an owner (the load balancer stream, LBS)."""
        return f"{self.service}-input"

    @property
    def group(self) -> str:
        """The consumer group of the service."""
        return f"{self.service}-group"

    @property
    def _base(self) -> str:
        return self.stream if hash_tag(self.stream) is not None else f"{{{self.stream}}}"

    @property
    def owners(self) -> str:
        """Hash: data stream -> the entry by which it is owned, or waits for an owner; others of its name wait."""
        return f"{self._base}:owners"

    @property
    def peers(self) -> str:
        """Hash: consumer -> until when it counts as alive, how many streams it owns, how many it can own."""
        return f"{self._base}:peers"

    @property
    def token(self) -> str:
        """String: the last fencing token that was given out."""
        return f"{self._base}:token"

    def request(self, request_id: str) -> str:
        """String with a TTL: the entry that one call of add_stream() added, should its answer get lost."""
        return f"{self._base}:request:{request_id}"

    @property
    def shards(self) -> str:
        """Hash: shard of a topic -> the entry by which it was announced."""
        return f"{self._base}:shards"

    @property
    def dead_letters(self) -> str:
        """Stream: entries that name no data stream, or that were given up."""
        return f"{self._base}_dlq"

    @staticmethod
    def lock(data_stream: str, entry_id: str) -> str:
        """String with a TTL: the consumer that owns the data stream."""
        return f"{data_stream}{MUTEX_KEY_SEP}{entry_id}"

    @staticmethod
    def split_lock(key: str) -> tuple[str, str] | None:
        """Return data stream and entry id of a lock, or None if the key is none."""
        data_stream, separator, entry_id = key.rpartition(MUTEX_KEY_SEP)
        return (data_stream, entry_id) if separator and data_stream and entry_id else None

    def position(self, data_stream: str) -> str:
        """Hash: how far the owners of a data stream have come, and the token of the newest of them."""
        base = data_stream if hash_tag(data_stream) is not None else f"{{{data_stream}}}"
        return f"{base}:balancer:{self.service}"


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys of one task queue: three streams as the user names them, and what belongs to them.

    `name` is what the streams begin with, without the prefix of the client. In a cluster it is made a hash tag, unless
    it has one: the streams of the queue `jobs` are `{jobs}.tasks`, `{jobs}.results` and `{jobs}.dead` there.
    """

    name: str
    prefix: str = ""

    @classmethod
    def of(cls, name: str, prefix: str = "", is_cluster: bool = False) -> TaskKeys:
        """Spell the keys of a queue as the user names it."""
        check_name("name", name, max_length=128)
        StreamKeys.of(name, prefix)
        return cls(f"{{{name}}}" if is_cluster and hash_tag(name) is None else name, prefix)

    def stream_name(self, lane: str = "") -> str:
        """Return the name of the stream of a lane, as streams are named to a client (it adds its prefix itself)."""
        return f"{self.name}.tasks{lane}"

    @property
    def _root(self) -> str:
        return f"{self.prefix}_{self.name}" if self.prefix else self.name

    @property
    def _base(self) -> str:
        return self._root if hash_tag(self._root) is not None else f"{{{self._root}}}"

    def tasks(self, lane: str = "") -> StreamKeys:
        """Stream: the tasks of a lane; '' is that of tasks of normal priority which any worker can do."""
        return StreamKeys(f"{self._root}.tasks{lane}")

    def suspects(self, lane: str = "") -> str:
        """Set: entries of the lane that were with a worker when it died."""
        return f"{self._base}:suspects{lane}"

    @property
    def results(self) -> str:
        """Stream: one entry for each result, in the order in which they came."""
        return f"{self._root}.results"

    @property
    def dead(self) -> str:
        """Stream: the dead letters of all lanes."""
        return f"{self._root}.dead"

    @property
    def index(self) -> str:
        """Hash: id of every open task -> 'entry-id lane unique-text'; entry-id is '-' while it is not due."""
        return f"{self._base}:index"

    @property
    def done(self) -> str:
        """Hash: id of every task that has a result -> id of the entry in the stream of results."""
        return f"{self._base}:done"

    @property
    def unique(self) -> str:
        """Hash: text that only one open task may have -> id of that task."""
        return f"{self._base}:unique"

    @property
    def counts(self) -> str:
        """Hash: '<what>:<kind>' -> how often, since the queue exists; what = added, acked, dead, redriven."""
        return f"{self._base}:counts"

    @property
    def lanes(self) -> str:
        """Set: the lanes that were ever used."""
        return f"{self._base}:lanes"

    @property
    def due(self) -> str:
        """Sorted set: ids of tasks that are not due, scored by the time in ms at which they are."""
        return f"{self._base}:due"

    @property
    def bodies(self) -> str:
        """Hash: id of every task that is not due -> its kind, a NUL and its body."""
        return f"{self._base}:bodies"

    @property
    def awaited(self) -> str:
        """Sorted set: ids of tasks whose result somebody waits for, scored by the time in ms at which that ends."""
        return f"{self._base}:awaited"

    def notice(self, task_id: str) -> str:
        """List with a TTL: has an element as soon as the result that somebody waits for is there."""
        return f"{self._base}:notice:{task_id}"

    def permits(self, scope: str) -> str:
        """Hash: id of every task that runs within a limit -> 'lane entry-id'."""
        return f"{self._base}:permits:{scope}"

    def queue_for(self, scope: str) -> str:
        """Sorted set: 'lane entry-id' of the tasks that wait for a permit, scored by the time at which they came."""
        return f"{self._base}:limited:{scope}"

    def rate(self, scope: str) -> str:
        """String with a TTL: the time in ms up to which beginnings are taken."""
        return f"{self._base}:rate:{scope}"

    def reserved(self, scope: str) -> str:
        """Set with a TTL: ids of tasks whose beginning is reserved."""
        return f"{self._base}:reserved:{scope}"

    def chore(self, chore: str) -> str:
        """String with a TTL: some process did the chore in this interval."""
        return f"{self._base}:chore:{chore}"


@dataclass(frozen=True, slots=True)
class ListQueueKeys:
    """The keys of a queue of redis-message-queue, which keeps its messages in lists; the importer reads them."""

    name: str
    separator: str = "::"

    def _of(self, kind: str) -> str:
        return f"{self.name}{self.separator}{kind}"

    @property
    def pending(self) -> str:
        """List: what waits, the oldest at the right end."""
        return self._of("pending")

    @property
    def processing(self) -> str:
        """List: what is in flight."""
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
        """String: what a claim was answered."""
        return f"{self.processing}:claim_result:{claim_id}"

    def log(self, kind: str) -> str:
        """List: `dlq`, `completed` or `failed`, the oldest at the right end."""
        return self._of(kind)

    def deduplication(self, key: str) -> str:
        """String: a message was published under the key."""
        return self._of(f"deduplication{self.separator}{key}")

    @staticmethod
    def aside(key: str) -> str:
        """List: what was in a list whose key is that of a stream by now."""
        return f"{key}:import"


def check_same_slot(stream: str, other: str, what: str) -> None:
    """Raise ClusterSlotError unless both keys are in one cluster slot."""
    if hashed_part(stream) != hashed_part(other):
        raise ClusterSlotError(
            f"{what} {other!r} and stream {stream!r} are in different cluster slots: "
            f"name them with one hash tag, for example '{{orders}}_main' and '{{orders}}_dlq'"
        )
