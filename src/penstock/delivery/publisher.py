"""Puts batches of one producer into its stream, each exactly once, however often it must be sent."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.delivery.encoding import Encoded, layout, lone_layout
from penstock.errors import (
    ConnectionFailed,
    ConnectionLost,
    NotDurable,
    PenstockError,
    PermissionDenied,
    PublishUnknown,
    StreamFull,
    UnsupportedServer,
)
from penstock.redis.aio import Command, Connection, Reply
from penstock.redis.client import StreamClient
from penstock.redis.retry import PASSING, RetryBudget, pause_s
from penstock.redis.scripts import script
from penstock.redis.settings import Host
from penstock.redis.translate import Redirected, ScriptMissing
from penstock.runtime.aio import home, pause

OnFull: TypeAlias = Literal["reject", "block", "drop_oldest"]
Durability: TypeAlias = Literal["fast", "local", "replicated"]
Answer: TypeAlias = str | PenstockError  # the id, or why the message was not accepted
_FULL = "!"
_SAME = "="


class Duplicate(str):
    """The id of the earlier entry that was published under the same deduplication key."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """How messages enter the stream."""

    max_len: int
    on_full: OnFull
    durability: Durability
    replicas: int
    durability_timeout_ms: int
    retry: RetryBudget
    block_timeout_s: float


class Publisher:
    """Sends batches of one producer to one stream, one at a time.

    Guarantees: a batch carries a sequence number that the server remembers in the same script as the entries, so a
    batch that is sent again after a lost reply adds nothing and gets the first answers.
    """

    def __init__(
        self, client: StreamClient, stream: str, settings: PublishSettings, on_dropped: Callable[[int], None]
    ) -> None:
        self._client, self._stream, self._settings, self._on_dropped = client, stream, settings, on_dropped
        self._keys = client.keys(stream)
        self._marker, self._process = self._keys.producer(secrets.token_hex(8)), os.getpid()
        self._dedup = self._keys.dedup("")
        self._script = script("streams/publish")
        self._head = ("EVALSHA", self._script.sha)
        policy = "drop_oldest" if settings.on_full == "drop_oldest" else "reject"
        self._fixed = (str(int(settings.retry.budget_s * 2) + 60), str(settings.max_len), policy)
        self._sequence = 0
        self._connection: Connection | None = None
        self._home: object = None
        self._was_connected = False
        self._chance = random.Random()
        self.duplicates = 0

    async def publish(self, messages: list[Encoded]) -> list[Answer]:
        """Add messages and return an answer for each."""
        answers = await self._publish_once(messages)
        if self._settings.on_full == "block":
            deadline = time.monotonic() + self._settings.block_timeout_s
            waits = 0
            while any(isinstance(answer, StreamFull) for answer in answers) and time.monotonic() < deadline:
                if self._settings.retry.is_given_up():
                    break
                waits += 1
                await pause(pause_s(waits, self._chance, longest_s=0.25))
                refused = [i for i, answer in enumerate(answers) if isinstance(answer, StreamFull)]
                again = await self._publish_once([messages[i] for i in refused])
                for i, answer in zip(refused, again, strict=True):
                    answers[i] = answer
        return answers

    async def _publish_once(self, messages: list[Encoded]) -> list[Answer]:
        answers = self.answers(await self.exchange(self.compose(messages), messages))
        is_fixed = self._client.settings.kind in ("single", "unix")
        if not is_fixed and any(isinstance(answer, NotDurable) for answer in answers):
            # Nobody follows this server: another one may be the master by now, and this one does not know it yet.
            await self._client.refresh()
            await self.close()
        return answers

    def compose(self, messages: list[Encoded]) -> Command:
        """Return the command for the next batch."""
        if self._process != os.getpid():
            # Forked: under the same marker the batches of two processes would be taken for repetitions.
            self._marker, self._process = self._keys.producer(secrets.token_hex(8)), os.getpid()
        self._sequence += 1
        if len(messages) == 1:
            return self._compose_lone(messages[0])
        args = layout(messages)
        keys: list[str] = []
        if args[1] != "plain":
            keys = [self._dedup + message.dedup_key for message in messages if message.dedup_key is not None]
        return (*self._head, 2 + len(keys), self._keys.stream, self._marker, *keys, self._sequence, *self._fixed, *args)

    def _compose_lone(self, message: Encoded) -> Command:
        # Its caller waits for it alone: laid out without the lists of a batch.
        if message.dedup_key is None:
            keys: tuple[str, ...] = (self._keys.stream, self._marker)
        else:
            keys = (self._keys.stream, self._marker, self._dedup + message.dedup_key)
        return (*self._head, len(keys), *keys, self._sequence, *self._fixed, *lone_layout(message))

    def answers(self, replies: list[Reply]) -> list[Answer]:
        """Return what the server said of each message."""
        dropped, _, text = replies[0].decode().partition(" ")
        if dropped != "0":
            self._on_dropped(int(dropped))
        answers = self._parse(text)
        return self._if_durable(replies[1], answers) if len(replies) > 1 else answers

    def lone_answer(self, reply: Reply) -> Answer:
        """Return what the server said of a message that travelled alone, without a question for durability."""
        text: str = reply.decode()
        if text.startswith("0 ") and text[2].isdigit():
            return text[2:]
        return self.answers([reply])[0]

    def _parse(self, text: str) -> list[Answer]:
        first, is_range, last = text.partition("..")
        if is_range:
            ms, _, seq = first.partition("-")
            return list(map(f"{ms}-".__add__, map(str, range(int(seq), int(last.partition("-")[2]) + 1))))
        return [self._answer(item) for item in text.split(" ")]

    def _answer(self, item: str) -> Answer:
        if item == _FULL:
            return StreamFull(
                f"stream {self._stream!r} holds max_len={self._settings.max_len} entries that a group still needs; "
                f"add consumers, raise max_len, or choose on_full='block' or 'drop_oldest'"
            )
        if item.startswith(_SAME):
            self.duplicates += 1
            return Duplicate(item[1:])
        return item

    async def exchange(
        self, command: Command, messages: list[Encoded], failure: PenstockError | None = None
    ) -> list[Reply]:
        """Send a batch until it is answered or the retry budget is used up; `failure` is that of an earlier try."""
        retry = self._settings.retry
        trial, is_unknown, asked = retry.start(), False, None
        while True:
            try:
                if failure is not None:
                    error, failure = failure, None
                    raise error
                return await (self._ask(asked, command) if asked else self._try(command))
            except ScriptMissing:
                command = ("EVAL", self._script.source, *command[2:])
                continue
            except PASSING as error:
                if isinstance(error, ConnectionFailed) and not (self._was_connected or retry.waits_for_server):
                    raise
                is_unknown = is_unknown or isinstance(error, ConnectionLost)
                asked = error.asked if isinstance(error, Redirected) else None
                await self._client.leave(self._connection, error)
                await self.close()
                wait_s = trial.pause_after(error)
                if wait_s is None:
                    raise self._given_up(error, is_unknown, messages) from error
            await self._client.rest(wait_s)

    def _given_up(self, failure: PenstockError, is_unknown: bool, messages: list[Encoded]) -> PenstockError:
        if not is_unknown:
            return failure
        return PublishUnknown(
            f"{len(messages)} message(s) may or may not be in stream {self._stream!r}: {failure}; the retry budget of "
            f"{self._settings.retry.budget_s} s is used up. Publish again with the same dedup_key to be sure",
            [message.message_id for message in messages],
        )

    async def _try(self, command: Command) -> list[Reply]:
        connection = self.open_connection() or await self._connect()
        if self._settings.durability == "fast":
            return [await connection.call(*command)]
        replies = await connection.pipeline([command, self._wait_command()], timeout_s=self._timeout_s())
        if isinstance(replies[0], PenstockError):
            raise replies[0]
        return replies

    async def _ask(self, asked: Host, command: Command) -> list[Reply]:
        # The slot is on the move. ASKING counts for the command behind it on the same connection: one write.
        key = self._keys.stream
        if self._settings.durability == "fast":
            connection = await self._client.connection(key, asked)
            replies = await connection.pipeline([("ASKING",), command])
        else:
            connection = await self._client.dedicated(key, asked)
            try:
                commands = [("ASKING",), command, self._wait_command()]
                replies = await connection.pipeline(commands, timeout_s=self._timeout_s())
            finally:
                await connection.close()
        if isinstance(replies[1], PenstockError):
            raise replies[1]
        return replies[1:]

    def open_connection(self) -> Connection | None:
        """Return the connection if it can be used here and now."""
        connection = self._connection
        if connection is None or not connection.is_open or self._home is not home():
            return None
        return connection

    def _timeout_s(self) -> float:
        return self._client.settings.socket_timeout_s + self._settings.durability_timeout_ms / 1000

    def _wait_command(self) -> Command:
        timeout_ms = self._settings.durability_timeout_ms
        if self._settings.durability == "local":
            return ("WAITAOF", 1, 0, timeout_ms)
        return ("WAIT", self._settings.replicas, timeout_ms)

    def _if_durable(self, reply: Reply, answers: list[Answer]) -> list[Answer]:
        # The answers as they are; or, unless the server confirmed, a NotDurable of its own for everyone who has an id.
        is_local = self._settings.durability == "local"
        if isinstance(reply, PenstockError):
            why = f"the server did not confirm it: {reply}"
        else:
            wanted = 1 if is_local else self._settings.replicas
            confirmed = reply[0] if is_local else reply
            if confirmed >= wanted:
                return answers
            kind = "disks" if is_local else "replicas"
            timeout_ms = self._settings.durability_timeout_ms
            why = f"only {confirmed} of {wanted} {kind} confirmed within {timeout_ms} ms"
        text = f"written to stream {self._stream!r}, but {why}; it may be lost in a crash or a failover"
        return [NotDurable(text, [answer]) if isinstance(answer, str) else answer for answer in answers]

    async def _connect(self) -> Connection:
        if self._settings.durability == "fast":
            self._connection = await self._client.connection(self._keys.stream)
        else:
            await self._check_can_confirm()
            # WAIT speaks of the writes of its own connection, and blocks whoever shares it.
            self._connection = await self._client.dedicated(self._keys.stream)
        self._home, self._was_connected = home(), True
        return self._connection

    async def _check_can_confirm(self) -> None:
        # Asked before anything is written: afterwards the entry would be there, and an error in the caller's hands.
        if self._settings.durability != "local":
            return
        try:
            found = await self._client.capabilities()
        except PermissionDenied:
            return  # the user may not ask; WAITAOF itself will tell
        if not found.has("WAITAOF"):
            raise UnsupportedServer(
                f"durability='local' needs WAITAOF, which {found.product} {found.version} lacks: use Redis 7.2, "
                f"Valkey 7.2 or newer, or choose durability='replicated' or 'fast'"
            )

    async def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None and self._settings.durability != "fast":
            await self._connection.close()
        self._connection = None
