"""The commands of one consumer of a balanced service: each method is one command or script, one transition of a stream.

take, read           own                       done
new ----------> pending ---------> owned ------------------> done
                  ^  |               |  release, or the lock runs out
                  |  | dead_letter          v
                  |  +-----> dead   waiting for an owner
                  +---------own----------+
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock import envelope
from penstock.balancer.config import BalancerConfig
from penstock.balancer.holdings import Ownership, Peer, PendingClaim
from penstock.balancer.messages import FIELD, Info, LBSInfo, LBSInputMessage
from penstock.dead_letter_record import Record
from penstock.delivery.dead_letters import DeadLetterMover
from penstock.delivery.decoding import Rejected
from penstock.delivery.group_commands import settle
from penstock.errors import (
    AlreadyClaimed,
    GroupLost,
    MalformedEntry,
    OwnershipLost,
    PenstockError,
    PermissionDenied,
    ServerError,
    WrongType,
)
from penstock.events import Emitter
from penstock.keys import BalancerKeys
from penstock.model import PendingEntry
from penstock.policy import Reason
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.reading import read_many
from penstock.redis.retry import Repeat

Row = tuple[str, list[bytes]]  # id and fields of an entry
CHUNK = 500
_REQUEST_TTL_MS = 60_000
_SLACK = 2  # by how many streams a consumer may be ahead of the least loaded one
_PATIENCE_MS = 500  # how long a new stream waits for a consumer that has fewer


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of taking new streams."""

    rows: list[Row]
    is_ahead: bool = False
    """Other consumers own fewer streams and should get the next ones."""
    is_waiting: bool = False
    """There are new streams, which are left to other consumers."""


class Exhausted(AlreadyClaimed):
    """The entry was handed out too often (internal: it is dead-lettered)."""

    def __init__(self, info: LBSInfo, deliveries: int) -> None:
        super().__init__(
            f"data stream {info.data_stream_name!r} was handed out {deliveries} times without "
            "success and is dead-lettered"
        )
        self.deliveries = deliveries


class OutOfReach(AlreadyClaimed):
    """This consumer's user may not use the lock of the stream, or its key holds another type (internal)."""


class BalancerCommands:
    """One consumer's view of its service in Redis."""

    def __init__(self, client: StreamClient, keys: BalancerKeys, me: str, config: BalancerConfig) -> None:
        self.client, self.keys, self.me, self.config = client, keys, me, config
        self.emit = Emitter(config.on_event, keys.stream, keys.group)
        self._dead_letter_writer = DeadLetterMover(
            client, keys.stream, keys.group, keys.dead_letters, config.logger, self.emit
        )
        self.queued: set[str] = set()  # data streams with another entry that waits

    # --- the service --------------------------------------------------------------------------------

    async def create_group(self) -> None:
        """Create stream and group unless they exist; from the beginning, so that early entries are not lost."""
        try:
            command = ("XGROUP", "CREATE", self.keys.stream, self.keys.group, "0", "MKSTREAM")
            await self.client.call(self.keys.stream, *command, repeat=Repeat.IDEMPOTENT)
        except ServerError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def add(self, message: LBSInputMessage) -> str:
        """Add a data stream, only once even if the reply is lost; return the id of its entry."""
        keys = [self.keys.stream, self.keys.request(secrets.token_hex(8))]
        args: list[bytes | str | int] = [_REQUEST_TTL_MS, FIELD, message.encode()]
        reply: bytes = await self.client.run("balancer/add", keys, args, Repeat.IDEMPOTENT)
        return reply.decode()

    async def announce(self, shards: Sequence[str]) -> int:
        """Add the shards of a topic, each once; return how many were new, or minus the number that the topic has."""
        values = [word for shard in shards for word in (shard, LBSInputMessage(shard).encode())]
        args: list[bytes | str | int] = [FIELD, len(shards), *values]
        keys = [self.keys.stream, self.keys.shards]
        return int(await self.client.run("balancer/announce", keys, args, Repeat.IDEMPOTENT))

    async def leave(self) -> None:
        """Stop counting as a peer."""
        await self.client.call(self.keys.stream, "HDEL", self.keys.peers, self.me, repeat=Repeat.IDEMPOTENT)

    async def live_peers(self, owned: int) -> dict[str, Peer]:
        """Return the registered consumers that are alive, and this one, which owns `owned` streams."""
        reply = await self.client.call(self.keys.stream, "HGETALL", self.keys.peers)
        seconds, micros = await self.client.call(self.keys.stream, "TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = {name: peer for name, until_ms, peer in peers_in(reply) if until_ms >= now_ms}
        return {**found, self.me: Peer(owned, self.config.capacity or 0)}

    # --- new streams --------------------------------------------------------------------------------

    async def take(self, owned: int, limit: int) -> Taken:
        """Take new streams without waiting, unless other consumers should get them."""
        config = self.config
        args: list[str | int] = [
            self.keys.group, self.me, owned, config.capacity or 0, config.peer_ttl_ms, _SLACK, _PATIENCE_MS, limit,
        ]  # fmt: skip
        reply = await self.client.run("balancer/take", [self.keys.stream, self.keys.peers], args, Repeat.ONCE)
        return Taken(_rows(reply[1]) if reply[0] == 0 else [], is_ahead=reply[0] > 0, is_waiting=reply[0] == 2)

    def read_command(self, block_ms: int) -> Command:
        """Return the command that waits for one new stream; send it only once."""
        return (
            "XREADGROUP", "GROUP", self.keys.group, self.me, "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.keys.stream,
            ">",
        )  # fmt: skip

    def watch_command(self, block_ms: int) -> Command:
        """Return the command that waits until a stream is added, without taking it."""
        return "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.keys.stream, "$"

    @staticmethod
    def parse_read(reply: Reply) -> list[Row]:
        """Return the entries of a reply to XREADGROUP."""
        return _rows(reply[0][1]) if reply else []

    # --- owning -------------------------------------------------------------------------------------

    async def own_new(self, claim: PendingClaim, additional_info: Info | None, owned: int) -> Ownership:
        """Become the owner of a stream whose entry this consumer has just read; `owned` is how many it has."""
        token, _, _ = await self._own(claim, "", 0, owned)
        return Ownership(claim.payload, token, additional_info)

    async def claim(self, claim: PendingClaim, owned: int) -> Ownership:
        """Become the owner of a stream whose owner is gone.

        Raises AlreadyClaimed if it has an owner, is finished, or waits for an earlier entry of its name.
        """
        info = claim.payload
        if self.client.is_cluster:
            holder = await self.client.call(info.lock, "GET", info.lock)
            if holder is not None and holder != self.me.encode():
                raise self._held(info, envelope.text(holder))
        limit = self.config.max_deliveries or 0
        token, deliveries, fields = await self._own(claim, self.config.lease_ms, limit, owned)
        message = LBSInputMessage.of_entry(fields)
        return Ownership(info, token, message.info, deliveries)

    async def _own(
        self, claim: PendingClaim, min_idle_ms: int | str, limit: int, owned: int
    ) -> tuple[int, int, list[bytes]]:
        token, deliveries, fields = await self._send_claim(claim, min_idle_ms, limit, owned)
        while not claim.is_held:
            # The lock may have expired before the reply was handled, and another consumer may own the stream. Ask again
            # as for an entry that was just read, which must still be pending here; that counts no delivery.
            token, _, _ = await self._send_claim(claim, "", 0, owned)
        return token, deliveries, fields

    async def _send_claim(
        self, claim: PendingClaim, min_idle_ms: int | str, limit: int, owned: int
    ) -> tuple[int, int, list[bytes]]:
        config, is_cluster, info = self.config, self.client.is_cluster, claim.payload
        name = info.data_stream_name
        keys = [self.keys.stream, self.keys.owners, self.keys.token, self.keys.peers]
        keys += [] if is_cluster else [info.lock]
        args: list[str | int] = [self.keys.group, self.me, info.id_in_lbs, name, config.lease_ms, min_idle_ms, limit]
        args += [owned, config.capacity or 0, config.peer_ttl_ms]
        claim.hold(time.monotonic(), config.lease_ms)
        try:
            reply = await self.client.run("balancer/own", keys, args, Repeat.IDEMPOTENT)
            if reply[0] != b"own":
                raise self._refusal(info, reply)
            if is_cluster and await self._extend(info, may_take=True) < 0:
                raise self._held(info, "another consumer")
        except (PermissionDenied, WrongType):
            await self._check_lock(info)
            raise
        return int(reply[1]), int(reply[2]), reply[3] if len(reply) > 3 else []

    async def _check_lock(self, info: LBSInfo) -> None:
        # Whoever may write to the load balancer stream can name any data stream; that must not stop this consumer.
        try:
            await self._extend(info, may_take=False)  # takes nothing, and needs the same rights
        except (PermissionDenied, WrongType) as error:
            raise OutOfReach(
                f"entry {info.id_in_lbs} of {self.keys.stream} names the data stream {info.data_stream_name!r}, whose "
                f"lock this consumer cannot use; the entry stays pending: {error}"
            ) from error

    def _refusal(self, info: LBSInfo, reply: Reply) -> AlreadyClaimed:
        name, answer = info.data_stream_name, reply[0]
        if answer == b"held":
            return self._held(info, envelope.text(reply[1]))
        if answer == b"queued":
            self.queued.add(name)
            return AlreadyClaimed(
                f"{name!r} is already handed out by entry {reply[1].decode()} of {self.keys.stream}; entry "
                f"{info.id_in_lbs} follows when that one is done"
            )
        if answer == b"exhausted":
            return Exhausted(info, int(reply[1]))
        return AlreadyClaimed(f"entry {info.id_in_lbs} of {self.keys.stream} for {name!r} is already finished")

    def _held(self, info: LBSInfo, holder: str) -> AlreadyClaimed:
        return AlreadyClaimed(f"already claimed: {info.data_stream_name!r} of {self.keys.stream} is owned by {holder}")

    async def _extend(self, info: LBSInfo, may_take: bool) -> int:
        args: list[str | int] = [self.me, self.config.lease_ms, int(may_take)]
        return int(await self.client.run("balancer/extend", [info.lock], args, Repeat.IDEMPOTENT))

    # --- giving up ----------------------------------------------------------------------------------

    async def done(self, info: LBSInfo) -> None:
        """Finish a stream: acknowledge and delete its entry, then delete the lock.

        Raises OwnershipLost, and changes nothing, if another consumer owns it or has finished it.
        """
        is_cluster = self.client.is_cluster
        if is_cluster and await self._extend(info, may_take=False) < 0:
            raise self._lost(info)
        keys = [self.keys.stream, self.keys.owners, *([] if is_cluster else [info.lock])]
        args = [self.keys.group, self.me, info.id_in_lbs, info.data_stream_name]
        if not await self._settle("balancer/done", keys, args, info.id_in_lbs):
            raise self._lost(info)
        if is_cluster:
            await self.client.run("balancer/unlock", [info.lock], [self.me, ""], Repeat.IDEMPOTENT)

    async def _settle(self, name: str, keys: Sequence[str], args: Sequence[bytes | str | int], entry_id: str) -> bool:
        unconfirmed = set[str]()
        answer = int(await settle(self.client, name, keys, args, (entry_id,), unconfirmed))
        # 0 = it is not pending: after a lost reply, the first try was executed.
        return answer > 0 or (answer == 0 and bool(unconfirmed))

    def _lost(self, info: LBSInfo) -> OwnershipLost:
        return OwnershipLost(
            f"{self.me} lost ownership of {info.data_stream_name!r} (entry {info.id_in_lbs} of "
            f"{self.keys.stream}) to another consumer; nothing was written"
        )

    async def release(self, infos: Sequence[LBSInfo]) -> list[bool]:
        """Release streams for other consumers; False = it was no longer ours."""
        released: list[bool] = []
        for start in range(0, len(infos), CHUNK):
            chunk = infos[start : start + CHUNK]
            locks = [] if self.client.is_cluster else [info.lock for info in chunk]
            ids = [info.id_in_lbs for info in chunk]
            args: list[str | int] = [self.keys.group, self.me, self.config.refreshed_idle_ms, *ids]
            keys = [self.keys.stream, *locks]
            reply = await self.client.run("balancer/release", keys, args, Repeat.IDEMPOTENT)
            released += [bool(item) for item in reply]
        if self.client.is_cluster:
            for info in infos:
                await self.client.run("balancer/unlock", [info.lock], [self.me, self.me], Repeat.IDEMPOTENT)
        # Redis deletes an expired key, and sends its event, when a client reads it or some time later: so read it.
        await read_many(self.client, [(info.lock, ("PTTL", info.lock)) for info in infos])
        return released

    async def message_of(self, entry_id: str, fields: list[bytes], deliveries: int = 1) -> LBSInputMessage | None:
        """Parse an entry; if it names no data stream, dead-letter it and return None."""
        try:
            return LBSInputMessage.of_entry(fields)
        except MalformedEntry as error:
            await self.dead_letter(Rejected(entry_id, Reason.DECODE_ERROR, error, deliveries, 0, fields))
            return None

    async def dead_letter(self, entry: Rejected, name: str = "") -> bool:
        """Move an entry, of the data stream `name` if it is given, to the dead letters; False = it is not ours."""
        keys = [self.keys.stream, self.keys.dead_letters, self.keys.owners]

        async def move(record: Record, _: Sequence[bytes]) -> bool:
            args = [self.keys.group, self.me, entry.id, self.config.lease_ms, name, *record]
            return await self._settle("balancer/dead_letter", keys, args, entry.id)

        try:
            return await self._dead_letter_writer.write(entry, self.me, move) is not None
        except Exception as error:
            # It stays pending: sweeps retry it, and other entries do not wait for it.
            self._dead_letter_writer.refused(error, entry.id)
            return False

    # --- looking ------------------------------------------------------------------------------------

    async def pending(self, start: str, count: int) -> list[PendingEntry]:
        """Return a page of the entries that were handed out and are not finished."""
        stream = self.keys.stream
        reply = await self.client.call(stream, "XPENDING", stream, self.keys.group, start, "+", count)
        return [_pending(row) for row in reply]

    async def pending_of(self, ids: Sequence[str]) -> list[PendingEntry | None]:
        """Return the pending state of each of these entries; None = it is not pending."""
        stream, group = self.keys.stream, self.keys.group
        replies = await read_many(self.client, [(stream, ("XPENDING", stream, group, i, i, 1)) for i in ids])
        found: list[PendingEntry | None] = []
        for reply in replies:
            if isinstance(reply, GroupLost):
                raise reply
            row = reply[0] if isinstance(reply, list) and reply else None
            found.append(_pending(row) if row else None)
        return found

    async def bodies(self, ids: Sequence[str]) -> list[list[bytes] | None]:
        """Return the fields of entries; None = the entry is deleted."""
        stream = self.keys.stream
        replies = await read_many(self.client, [(stream, ("XRANGE", stream, i, i)) for i in ids])
        return [reply[0][1] if isinstance(reply, list) and reply else None for reply in replies]

    async def are_locked(self, infos: Sequence[LBSInfo]) -> list[bool | PenstockError]:
        """Return for each stream whether a consumer holds its lock, or why this consumer cannot know."""
        replies = await read_many(self.client, [(info.lock, ("EXISTS", info.lock)) for info in infos])
        return [reply if isinstance(reply, PenstockError) else reply != 0 for reply in replies]

    async def forget(self, entry_id: str) -> None:
        """Acknowledge an entry that was deleted while it was pending."""
        stream = self.keys.stream
        await self.client.call(stream, "XACK", stream, self.keys.group, entry_id, repeat=Repeat.IDEMPOTENT)


def peers_in(reply: Reply) -> Iterator[tuple[str, int, Peer]]:
    """Yield name, until when it counts as alive, and the numbers of each registered consumer."""
    for name, told in zip(reply[::2], reply[1::2], strict=True):
        numbers = [number for word in told.split() if (number := envelope.number(word)) is not None]
        if len(numbers) == 3:  # else it was written by others
            yield envelope.text(name), numbers[0], Peer(numbers[1], numbers[2])


def _pending(row: Reply) -> PendingEntry:
    return PendingEntry(row[0].decode(), envelope.text(row[1]), int(row[2]), int(row[3]))


def _rows(reply: Reply) -> list[Row]:
    return [(row[0].decode(), row[1]) for row in reply if row[1] is not None]
