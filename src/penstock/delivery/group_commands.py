"""The commands of one consumer of a group: each method is one command or script, and one transition of a message.

       read               ack
queued ------> pending -----------> acknowledged
   ^           |  ^  |    dead_letter
   |      park |  |  +------------> dead
   |           v  | take_due,        |
   |        waiting recover, take    | redrive
   +---------------------------------+
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

from penstock import envelope, ids
from penstock.errors import ConnectionLost, ServerError
from penstock.keys import StreamKeys
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.packing import Command
from penstock.redis.retry import Repeat
from penstock.redis.scripts import script
from penstock.runtime.aio import Promise, new_promise

Row = tuple[str, list[bytes]]  # id and fields of an entry
MAX_IDS = 1_000  # per script call: Lua unpacks a list onto its stack
_TRIES = 3
_MAX_PAGES = 100  # at two thousand messages each


@dataclass(frozen=True, slots=True)
class Redelivery:
    """A message that is handed out again, with its counts before the coming run."""

    id: str
    deliveries: int
    attempts: int
    fields: list[bytes]


@dataclass(frozen=True, slots=True)
class Parking:
    """A message to be put aside, with the counts that it keeps."""

    id: str
    delay_ms: int
    deliveries: int
    attempts: int


class GroupCommands:
    """One consumer's view of its group in Redis."""

    def __init__(
        self, client: StreamClient, keys: StreamKeys, group: str, consumer: str, dead_letters: str | None
    ) -> None:
        """Without `dead_letters`, the caller settles messages whose entries are missing."""
        self._client, self.keys, self.group, self.consumer = client, keys, group, consumer
        self.incarnation = ""  # set when the name was given by the user and might be taken twice
        self.is_fenced = False  # another process has taken the name
        self._worker = keys.worker(group, consumer)
        self._claim_keys = [keys.stream, keys.retries(group), keys.attempts(group)]
        self._claim_keys += [] if dead_letters is None else [dead_letters]
        self._ack = script("streams/ack")
        keys_of_finish = (keys.stream, self._claim_keys[2])
        self._finish_quickly: Command = ("EVALSHA", script("queue/finish").sha, 2, *keys_of_finish, group, consumer)
        self.unconfirmed: set[str] = set()  # may have been settled by a try whose reply was lost

    @property
    def _identity(self) -> tuple[str, str, str]:
        return self.group, self.consumer, self.incarnation

    # --- reading ------------------------------------------------------------------------------------

    def read_command(self, count: int, block_ms: int | None) -> Command:
        """Return the command that reads new messages; send it only once."""
        block = ("BLOCK", block_ms) if block_ms else ()
        return (
            "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", count, *block, "STREAMS", self.keys.stream, ">",
        )  # fmt: skip

    # --- settling -----------------------------------------------------------------------------------

    def ack_command(self, done: Sequence[str], forget: bool, record: bool, expected: int = -1) -> Command:
        """Return the command that acknowledges messages, at most MAX_IDS of them.

        `expected` is the number of messages pending with this consumer if it lost none, or -1 if that is unknown. The
        reply is the number of acknowledged messages, and the ids that were refused; -1 = another number is pending.
        """
        first, last = id_bounds(done) if expected < 0 else ("-", "+")
        keys = (self.keys.stream, self.keys.attempts(self.group), self.keys.position(self.group), self._worker)
        flags = (self.group, self.consumer, self.incarnation, int(record), int(forget), expected)
        return ("EVALSHA", self._ack.sha, len(keys), *keys, *flags, first, last, *done)

    async def ack(self, done: Sequence[str], forget: bool, record: bool) -> Reply:
        """Acknowledge messages, at most MAX_IDS. If an `unconfirmed` one is refused, it is acknowledged already."""
        command = self.ack_command(done, forget, record)
        count = int(command[2])
        keys = [str(key) for key in command[3 : 3 + count]]
        return await settle(self._client, "streams/ack", keys, command[3 + count :], done, self.unconfirmed)

    async def begin(self, claims: Sequence[tuple[str, int, int]]) -> list[bool]:
        """Record that handlers begin with messages (id, deliveries, attempts so far); False = no longer ours."""
        args = [item for claim in claims for item in claim]
        keys = [self.keys.stream, self.keys.attempts(self.group), self._worker]
        reply = await self._client.run("streams/begin", keys, [*self._identity, *args], Repeat.IDEMPOTENT)
        return [bool(item) for item in reply]

    async def park(self, parkings: Sequence[Parking]) -> list[bool]:
        """Put messages aside until they are due; False = no longer ours."""
        answers: list[bool] = []
        for start in range(0, len(parkings), MAX_IDS):
            chunk = parkings[start : start + MAX_IDS]
            args = [item for p in chunk for item in (p.id, p.delay_ms, p.deliveries, p.attempts)]
            keys = [*self._claim_keys[:3], self._worker]
            reply = await self._client.run("streams/park", keys, [*self._identity, *args], Repeat.IDEMPOTENT)
            # After a lost reply, False may also mean that a peer has taken the parked message already.
            answers += [bool(item) for item in reply]
        return answers

    async def dead_letter(
        self,
        message_id: str,
        record: Sequence[bytes | str | int],
        fields: Sequence[bytes],
        *,
        is_deleted: bool = False,
    ) -> bool:
        """Move a message to the dead letters and release its deduplication key; False = it is no longer ours.

        With `is_deleted`, the entry is also deleted from the stream, unless another group needs it.
        """
        dedup_key = envelope.dedup_key(fields)
        _, retries, attempts, dead_letters = self._claim_keys
        keys = [self.keys.stream, dead_letters, retries, attempts, self._worker]
        if dedup_key is not None:
            keys.append(self.keys.dedup(dedup_key))
        answer = await self._settle(
            "streams/dead_letter", keys, [*self._identity, message_id, int(is_deleted), *record], message_id
        )
        return answer != 0

    async def finish(
        self,
        message_id: str,
        log: str | None,
        record: Sequence[bytes | str | int],
        most: int,
        *,
        must_log: bool,
        dedup_key: str | None = None,
    ) -> int:
        """Finish a message, and record it in a log that keeps `most` records; 0 = it is no longer ours.

        2 = it is finished, but its optional record could not be written. Releases the deduplication key, if one is
        given.
        """
        keys = [self.keys.stream, self._claim_keys[2], *([log] if log else [])]
        if dedup_key is not None:
            keys.append(self.keys.dedup(dedup_key))
        logging = 0 if log is None else 2 if must_log else 1
        args: list[bytes | str | int] = [self.group, self.consumer, message_id, logging, most, *record]
        return int(await self._settle("queue/finish", keys, args, message_id))

    def post_finish(self, message_id: str, *following: Command) -> Promise[list[Reply]] | None:
        """Send finish() without a log immediately, and further commands after it; None = it cannot be sent now.

        The promise resolves to the replies; the first one is 1 if the message is finished. This is the hot path: only
        the promise is awaited, so nothing needs protection from cancellation.
        """
        connection = self._client.ready()
        if connection is None:
            return None
        promise: Promise[list[Reply]] = new_promise()
        replies: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            if not replies and isinstance(reply, ConnectionLost):
                self.unconfirmed.add(message_id)  # finish() finds out whether it was executed
            replies.append(reply)
            if len(replies) > len(following):
                promise.set_result(replies)

        connection.post(on_reply, (*self._finish_quickly, message_id, 0, 0), *following)
        return promise

    async def _settle(
        self, name: str, keys: Sequence[str], args: Sequence[bytes | str | int], message_id: str
    ) -> bytes | int:
        # The reply of a script that settles a message once; 0 = it is no longer ours.
        answer: bytes | int = await settle(self._client, name, keys, args, (message_id,), self.unconfirmed)
        # Not pending: after a lost reply, the first try was executed; otherwise another consumer settled the message.
        is_repeated = message_id in self.unconfirmed
        self.unconfirmed.discard(message_id)
        if answer == 0 and is_repeated:
            return 1
        return 0 if answer == -1 else answer

    async def renew(self, message_id: str, lease_ms: int) -> bool:
        """Renew the lease of one message; False = it is no longer ours."""
        args: list[str | int] = [self.group, self.consumer, "", 0, message_id]
        refused, vanished = await self._client.run("streams/renew", [self.keys.stream], args, Repeat.IDEMPOTENT)
        if vanished:
            args = [self.group, self.consumer, lease_ms, message_id, 1]
            refused = await self._client.run("streams/hold_vanished", self._claim_keys[:2], args, Repeat.IDEMPOTENT)
        return not refused

    # --- taking messages again ----------------------------------------------------------------------

    async def take_due(self, limit: int, waits: bool = True) -> tuple[int | None, list[Redelivery], list[str]]:
        """Take messages that are due; also return the ms until the next one is."""
        args: list[str | int] = [self.group, self.consumer, limit]
        wait_ms, claims, missing = await self._client.run(
            "streams/take_due", self._claim_keys, args, Repeat.ONCE, waits
        )
        return (None if wait_ms < 0 else int(wait_ms)), self._claims(claims), _texts(missing)

    async def recover(
        self, lease_ms: int, limit: int, cursor: str, page: int, waits: bool = True
    ) -> tuple[str, list[Redelivery], list[str]]:
        """Take messages whose lease has expired; also return the cursor of the next call.

        Passes over what silent consumers left waiting for a retry, in at most _MAX_PAGES calls.
        """
        for pages_left in reversed(range(_MAX_PAGES)):
            args: list[str | int] = [self.group, self.consumer, lease_ms, limit, cursor, page]
            following, claims, missing, is_more = await self._client.run(
                "streams/recover", self._claim_keys, args, Repeat.ONCE, waits
            )
            cursor = following.decode()
            if claims or missing or not (is_more and pages_left):
                return cursor, self._claims(claims), _texts(missing)
        raise AssertionError("the last look returns")

    def _claims(self, reply: Reply) -> list[Redelivery]:
        claims = [Redelivery(item[0].decode(), int(item[1]), int(item[2]), item[3]) for item in reply]
        # A try whose reply was lost before this has not settled them, or only put them aside.
        self.unconfirmed.difference_update(claim.id for claim in claims)
        return claims

    async def own_pending(self) -> AsyncIterator[list[str]]:
        """Yield pages of the ids that are pending with this consumer; the first one may be empty."""
        stream, start = self.keys.stream, "-"
        while True:
            command = ("XPENDING", stream, self.group, start, "+", MAX_IDS, self.consumer)
            page = [row[0].decode() for row in await self._client.call(stream, *command)]
            yield page
            if len(page) < MAX_IDS:
                return
            start = f"({page[-1]}"

    async def take(self, wanted: Sequence[str], is_own_read: bool) -> tuple[list[Redelivery], list[str]]:
        """Take messages that are pending with this consumer but not held by it.

        `is_own_read` means that they were not delivered to an earlier process with this name.
        """
        found, gone, left = list[Redelivery](), list[str](), wanted
        while left:  # a call takes only a few large messages
            args: list[str | int] = [self.group, self.consumer, int(is_own_read), *left]
            reply = await self._client.run("streams/take", self._claim_keys, args, Repeat.IDEMPOTENT)
            claims, missing, examined = reply
            found, gone, left = [*found, *self._claims(claims)], [*gone, *_texts(missing)], left[examined:]
        return found, gone

    async def take_unheld(
        self, held: Callable[[], Collection[str]], is_own_read: bool
    ) -> AsyncIterator[tuple[list[Redelivery], list[str]]]:
        """Take messages that are pending with this consumer and are not among the ids that `held` returns."""
        async for page in self.own_pending():
            known = held()
            unheld = [entry_id for entry_id in page if entry_id not in known]
            if unheld:
                yield await self.take(unheld, is_own_read)

    # --- the name -----------------------------------------------------------------------------------

    async def take_name(self, incarnation: str, ttl_ms: int) -> None:
        """Make this process the one that runs under the consumer's name; an older one is fenced off."""
        self.incarnation = incarnation
        await self._client.run("streams/take_name", [self._worker], [incarnation, ttl_ms], Repeat.IDEMPOTENT)

    async def leave_name(self) -> None:
        """Release the name if it is still ours."""
        if self.incarnation:
            await self._client.run("streams/leave_name", [self._worker], [self.incarnation], Repeat.IDEMPOTENT)


async def settle(
    client: StreamClient, name: str, keys: Sequence[str], args: Sequence[bytes | str | int], ids: Collection[str],
    unconfirmed: set[str],
) -> Reply:  # fmt: skip
    """Run a script that settles the ids, and refuses settled ones, until a reply arrives; return the reply.

    Adds the ids to `unconfirmed` when a reply is lost: if one of them is then refused, an earlier try has settled it.
    The caller removes them; after an error they stay there for the next call.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return await client.run(name, keys, args, Repeat.ONCE)
        except ConnectionLost:
            unconfirmed.update(ids)
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def parse_rows(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    """Return the entries of an XREADGROUP reply for one stream, as the server sends them."""
    if not reply:
        return []
    if len(reply) != 1:
        raise ServerError(f"expected the entries of one stream, got {len(reply)}")
    rows: list[tuple[bytes, list[bytes]]] = reply[0][1]
    return rows


def id_bounds(done: Sequence[str]) -> tuple[str, str]:
    """Return the least and the greatest of the ids."""
    # Ids of one length sort like strings. Parsing every id would double the cost of acknowledging.
    if not done:
        return "-", "+"
    lengths = set(map(len, done))
    by_length = [done] if len(lengths) == 1 else [[item for item in done if len(item) == size] for size in lengths]
    ends = [end for same in by_length for end in (min(same), max(same))]
    return min(ends, key=ids.parse), max(ends, key=ids.parse)


def _texts(reply: Reply) -> list[str]:
    return [item.decode() for item in reply]
