"""Brings chunks to Redis: several on their way at once, each until the server has confirmed it."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import PenstockError, StreamFull
from penstock.redis.blocking import Connection
from penstock.redis.retry import pause_s
from penstock.redis.settings import Host
from penstock.redis.translate import Redirected, ScriptMissing
from penstock.runtime.threads import pause
from penstock.spark.runtime.link import Retries
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.protocol import Chunk, IdempotentScript, Outcome, Room, Settled, WriteProtocol
from penstock.sync.redis.client import StreamClient

_NONE = Room(0)


@dataclass
class RowCounts:
    """What became of the rows, by stream."""

    added: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class Sender:
    """Delivers the chunks of one task, those for one stream in their order.

    It has the client's connections for itself: one task runs in a Python worker at a time.

    Guarantees: what close() has returned for is confirmed. A chunk is sent again after a lost reply, a restart of the
    server or a move of its slot; whether it can then be there twice is a matter of the protocol.
    """

    def __init__(self, client: StreamClient, protocol: WriteProtocol, options: SinkOptions) -> None:
        self._client, self._protocol, self._options = client, protocol, options
        self._under_way: dict[Connection, deque[Chunk]] = {}
        self._rng = random.Random()
        self.tally = RowCounts()

    def send(self, chunk: Chunk) -> None:
        """Send a chunk; wait for earlier ones only if too many are under way.

        Raises: StreamFull, QueryFenced, ReplayDiffers, WriteLost, or what Redis says.
        """
        key = self._client.keys(chunk.stream).stream
        connection = self._open(key)
        while connection is not None and len(self._under_way.get(connection, ())) >= self._options.in_flight:
            self._collect(connection)
            connection = self._open(key)
        if connection is not None and _is_sent(connection, self._protocol.pack(chunk)):
            self._under_way.setdefault(connection, deque()).append(chunk)
        else:
            self._settle_all()
            self._insist(chunk)

    def close(self) -> None:
        """Wait until everything is confirmed."""
        while self._under_way:
            self._collect(next(iter(self._under_way)))

    def abort(self) -> None:
        """Forget what is under way, and hang up where replies are still to come."""
        for connection in self._under_way:
            connection.abort()
        self._under_way.clear()

    # --- the usual way ------------------------------------------------------------------------------

    def _open(self, key: str) -> Connection | None:
        try:
            return self._client.connection(key)
        except PenstockError:
            return None  # the hard way meets the same error, and waits

    def _collect(self, connection: Connection) -> None:
        # The oldest chunk; if anything is the matter with it, all that are under way, one after the other.
        waiting = self._under_way[connection]
        outcome = self._received(connection, waiting[0])
        if not _is_whole(waiting[0], outcome):
            self._settle_all(connection, outcome)
            return
        self._settled(waiting.popleft(), outcome)
        if not waiting:
            del self._under_way[connection]

    def _received(self, connection: Connection, chunk: Chunk) -> Outcome:
        try:
            return self._protocol.outcome(chunk, connection.receive(self._protocol.replies(chunk)))
        except PenstockError as error:
            return error

    def _settle_all(self, tried: Connection | None = None, outcome: Outcome = _NONE) -> None:
        # All replies are taken in first: a chunk that was written after one that was not need not be sent again.
        outcomes: list[tuple[Chunk, Outcome]] = []
        while self._under_way:
            connection, chunks = self._under_way.popitem()
            if connection is tried:
                outcomes.append((chunks.popleft(), outcome))
            outcomes += [(chunk, self._received(connection, chunk)) for chunk in chunks]
        for chunk, found in outcomes:
            if _is_whole(chunk, found):
                self._settled(chunk, found)
            else:
                self._insist(chunk)

    # --- the hard way -------------------------------------------------------------------------------

    def _insist(self, chunk: Chunk) -> None:
        """Deliver one chunk alone, in parts if need be."""
        full_since: float | None = None
        left: Chunk | None = chunk
        while left is not None:
            outcome = self._exchange(left)
            if isinstance(outcome, Settled):
                left = self._settled(left, outcome)
                full_since = None
            elif outcome.rows:
                part, left = left.split(outcome.rows)
                self._insist(part)
                full_since = None
            else:
                full_since = full_since or time.monotonic()
                self._wait_for_room(left, time.monotonic() - full_since)

    def _settled(self, chunk: Chunk, outcome: Outcome) -> Chunk | None:
        """Count the rows that are in the stream; return the others."""
        assert isinstance(outcome, Settled)
        rest = None
        if outcome.rows < chunk.rows:
            chunk, rest = chunk.split(outcome.rows)
        if outcome.checksum is not None and outcome.checksum != chunk.after:
            assert isinstance(self._protocol, IdempotentScript)
            raise self._protocol.differs(chunk)
        counter = self.tally.added if outcome.is_new else self.tally.repeated
        counter[chunk.stream] += chunk.rows
        if outcome.dropped:
            self.tally.dropped[chunk.stream] += outcome.dropped
        return rest

    def _wait_for_room(self, chunk: Chunk, waited_s: float) -> None:
        options = self._options
        if options.on_full == "reject" or waited_s >= options.block_timeout_s:
            waited = f" for {options.block_timeout_s:g} s" if options.on_full == "block" else ""
            raise StreamFull(
                f"stream {chunk.stream!r} has reached maxLen={options.max_len}{waited}, and a group still needs "
                f"its entries; rows {chunk.first + 1:,} and later of this partition were not written. Add "
                "consumers, raise maxLen, or set onFull=block or drop_oldest"
            )
        pause(pause_s(5, self._rng, longest_s=0.25))

    def _exchange(self, chunk: Chunk) -> Settled | Room:
        key, is_known = self._client.keys(chunk.stream).stream, True

        def attempt(ask_host: Host | None) -> Settled | Room:
            connection = self._client.connection(key, ask_host)
            try:
                connection.send(self._protocol.pack(chunk, is_asking=ask_host is not None, is_known=is_known))
                replies = connection.receive(self._protocol.replies(chunk) * (1 if ask_host is None else 2))
                outcome = self._protocol.outcome(chunk, replies if ask_host is None else replies[1::2])
                if isinstance(outcome, PenstockError):
                    raise outcome
            except PenstockError as error:
                self._client.leave(connection, error)
                raise
            return outcome

        what = f"writing to stream {chunk.stream!r}"
        try:
            return insist(attempt, self._options.retry_timeout_s, what)
        except ScriptMissing:
            is_known = False
            return insist(attempt, self._options.retry_timeout_s, what)


def insist(attempt: Callable[[Host | None], Settled | Room], timeout_s: float, what: str) -> Settled | Room:
    """Try until it succeeds, fails for good, or the time is up; a server that a cluster says to ask is asked."""
    retries, ask_host = Retries(timeout_s), None
    while True:
        try:
            return attempt(ask_host)
        except ScriptMissing:
            raise
        except PenstockError as error:
            ask_host = error.ask_host if isinstance(error, Redirected) else None
            retries.wait_or_raise(error, what)


def _is_sent(connection: Connection, packed: bytes) -> bool:
    try:
        connection.send(packed)
    except PenstockError:
        return False
    return True


def _is_whole(chunk: Chunk, outcome: Outcome) -> bool:
    return isinstance(outcome, Settled) and outcome.rows == chunk.rows and outcome.checksum is None
