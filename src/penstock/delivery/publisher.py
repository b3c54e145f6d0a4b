"""Publishes the messages of one producer, each once; concurrent pushes share a batch.

If possible, `_send_at_once` sends a batch: it writes the command, and the connection calls back with the reply.
Otherwise, `_send` does so in a task.
"""

from __future__ import annotations

import copy
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.delivery.encoding import Encoded, layout
from penstock.errors import (
    ConnectionFailed,
    ConnectionLost,
    NotDurable,
    PenstockError,
    PublishUnknown,
    StreamFull,
)
from penstock.redis.aio import Connection, Reply
from penstock.redis.client import StreamClient
from penstock.redis.master_watch import MasterReplaced
from penstock.redis.packing import Command
from penstock.redis.retry import RETRYABLE, RetryBudget, pause_s
from penstock.redis.scripts import MAX_BYTES, script, steps
from penstock.redis.settings import Host
from penstock.redis.translate import Redirected, ScriptMissing
from penstock.runtime.aio import Combiner, Promise, connection_scope, new_promise, pause

OnFull: TypeAlias = Literal["reject", "block", "drop_oldest"]
Durability: TypeAlias = Literal["fast", "local", "replicated"]
Answer: TypeAlias = str | PenstockError  # the id, or why the message was not accepted
_FULL, _SAME, _RANGE = "!", "=", ".."  # in the answers of the script


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
    linger_s: float = 0.0
    max_batch: int = 500
    max_buffered: int = 10_000


class PublishCall:
    """The messages of one call, and the promise that it waits for."""

    __slots__ = ("messages", "promise")

    def __init__(self, messages: list[Encoded], promise: Promise[list[Answer]]) -> None:
        self.messages, self.promise = messages, promise


Item: TypeAlias = PublishCall | Encoded  # a single message needs no wrapping


class Publisher:
    """Sends the messages of one producer to one stream, in batches, one batch at a time.

    Guarantees: a batch carries a sequence number that the server remembers in the same script as the entries, so a
    batch that is sent again after a lost reply adds nothing and gets the first answers.
    """

    def __init__(
        self,
        client: StreamClient,
        stream: str,
        settings: PublishSettings,
        on_answers: Callable[[list[Answer]], None],
        on_dropped: Callable[[int], None],
    ) -> None:
        self._client, self._stream, self._settings = client, stream, settings
        self._on_answers, self._on_dropped = on_answers, on_dropped
        self._keys = client.keys(stream)
        self._marker, self._process = self._keys.producer(secrets.token_hex(8)), os.getpid()
        self._dedup = self._keys.dedup("")
        self._script = script("streams/publish")
        self._head = ("EVALSHA", self._script.sha)
        policy = "drop_oldest" if settings.on_full == "drop_oldest" else "reject"
        self._fixed = (str(int(settings.retry.budget_s * 2) + 60), str(settings.max_len), policy)
        self._sequence = 0
        self._connection: Connection | None = None
        self._scope: object = None
        self._was_connected = False
        self._rng = random.Random()
        self._combiner: Combiner[Item] = Combiner(self._send, settings.linger_s, settings.max_buffered)
        self.is_full = self._combiner.is_full  # asked before every post
        self.wait_for_room = self._combiner.wait_for_room
        if settings.durability == "fast" and settings.on_full != "block":
            self._combiner.send_at_once = self._send_at_once

    def post(self, message: Encoded) -> Promise[Answer]:
        """Send a message; the promise resolves to its answer."""
        promise = message.promise = new_promise()
        self._combiner.put(message)
        return promise

    def post_many(self, messages: list[Encoded]) -> Promise[list[Answer]]:
        """Send messages; the promise resolves to their answers."""
        promise: Promise[list[Answer]] = new_promise()
        self._combiner.put(PublishCall(messages, promise))
        return promise

    async def close(self) -> None:
        """Wait for pending batches and close the connection."""
        await self._combiner.flush()
        await self._disconnect()

    # --- the short way ------------------------------------------------------------------------------

    def _send_at_once(self, items: list[Item], done: Callable[[], None]) -> bool:
        """Send a batch without a task, if possible; return False if `_send` must do it.

        This is the hot path: the callback of the connection saves a task and two turns of the event loop.
        """
        connection, messages = self._open_connection(), _messages(items)
        if connection is None or len(messages) > self._settings.max_batch:
            return False
        if len(messages) > 1 and sum([len(message.raw) for message in messages]) > MAX_BYTES:
            return False
        command = self._compose(messages)

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, PenstockError):
                again = items, messages, command, reply
                self._combiner.run_in_task(self._send_again(*again))  # sync: self._send_again(*again)
            else:
                answers = self._answers([reply])
                self._on_answers(answers)
                _distribute(items, answers)
                done()

        try:
            connection.post(on_reply, command)
        except BaseException as error:
            _fail(items, error)
            raise
        return True

    def _open_connection(self) -> Connection | None:
        # Returns the connection if it can be used right now.
        connection = self._connection
        if connection is None or not connection.is_open or self._scope is not connection_scope():
            return None
        return connection

    def _compose(self, messages: list[Encoded]) -> Command:
        # Returns the command for the next batch.
        if self._process != os.getpid():
            # Forked: with the same marker, batches of the two processes would count as repetitions.
            self._marker, self._process = self._keys.producer(secrets.token_hex(8)), os.getpid()
        self._sequence += 1
        keys, args = [self._keys.stream, self._marker], layout(messages)
        if args[1] != "plain":
            for message in messages:
                if message.dedup_key is not None:
                    keys.append(self._dedup + message.dedup_key)  # noqa: PERF401  # mostly one: a loop is faster
        return (*self._head, len(keys), *keys, self._sequence, *self._fixed, *args)

    # --- the long way -------------------------------------------------------------------------------

    async def _send(self, items: list[Item]) -> None:
        messages, answers = _messages(items), list[Answer]()
        try:
            for step in steps([len(message.raw) for message in messages], self._settings.max_batch):
                some = messages[step]
                answers += await self._answered(some, self._publish, some)
        except BaseException as error:
            _fail(items, error)
            raise
        _distribute(items, answers)

    async def _send_again(
        self, items: list[Item], messages: list[Encoded], command: Command, failure: PenstockError
    ) -> None:
        _distribute(items, await self._answered(messages, self._publish_once, messages, command, failure))

    async def _answered(
        self, messages: list[Encoded], publish: Callable[..., Awaitable[list[Answer]]], *args: object
    ) -> list[Answer]:
        try:
            answers = await publish(*args)
        except PenstockError as error:
            return [_own(error, message) for message in messages]
        self._on_answers(answers)
        return answers

    async def _publish(self, messages: list[Encoded]) -> list[Answer]:
        # Returns an answer for each message. With on_full='block', sends refused messages again until there is room.
        answers = await self._publish_once(messages)
        if self._settings.on_full == "block":
            deadline = time.monotonic() + self._settings.block_timeout_s
            waits = 0
            while any(isinstance(answer, StreamFull) for answer in answers) and time.monotonic() < deadline:
                if self._settings.retry.is_given_up():
                    break
                waits += 1
                await pause(pause_s(waits, self._rng, longest_s=0.25))
                refused = [i for i, answer in enumerate(answers) if isinstance(answer, StreamFull)]
                again = await self._publish_once([messages[i] for i in refused])
                for i, answer in zip(refused, again, strict=True):
                    answers[i] = answer
        return answers

    async def _publish_once(
        self, messages: list[Encoded], command: Command | None = None, failure: PenstockError | None = None
    ) -> list[Answer]:
        # `failure` is that of an earlier try with the command.
        answers = self._answers(await self._exchange(command or self._compose(messages), messages, failure))
        is_fixed = self._client.settings.kind in ("single", "unix")
        if not is_fixed and any(isinstance(answer, NotDurable) for answer in answers):
            # Another server may be the master by now without this one knowing it.
            await self._client.refresh()
            await self._disconnect()
        return answers

    async def _exchange(self, command: Command, messages: list[Encoded], failure: PenstockError | None) -> list[Reply]:
        # Sends a batch until it is answered or the retry budget is used up.
        retry = self._settings.retry
        trial, is_unknown, ask_host = retry.start(), False, None
        while True:
            try:
                if failure is not None:
                    error, failure = failure, None
                    raise error
                return await self._try(command, ask_host)
            except ScriptMissing:
                command = ("EVAL", self._script.source, *command[2:])
                continue
            except RETRYABLE as error:
                is_absent = isinstance(error, ConnectionFailed) and not isinstance(error, MasterReplaced)
                if is_absent and not (self._was_connected or retry.waits_for_server):
                    raise
                is_unknown = is_unknown or isinstance(error, ConnectionLost)
                ask_host = error.ask_host if isinstance(error, Redirected) else None
                await self._client.leave(self._connection, error)
                await self._disconnect()
                wait_s = trial.pause_after(error)
                if wait_s is None:
                    raise self._given_up(error, is_unknown, messages) from error
            await self._client.rest(wait_s)

    def _given_up(self, failure: PenstockError, is_unknown: bool, messages: list[Encoded]) -> PenstockError:
        if not is_unknown:
            return failure
        has_keys = all(message.dedup_key is not None for message in messages)
        advice = "with the same dedup_key, which adds no duplicate" if has_keys else "only if duplicates are acceptable"
        return PublishUnknown(
            f"{len(messages)} message(s) may or may not have been added to stream {self._stream!r}: {failure}; "
            f"no answer within the retry budget of {self._settings.retry.budget_s} s. Publish again {advice}",
            [message.message_id for message in messages],
        )

    async def _try(self, command: Command, ask_host: Host | None) -> list[Reply]:
        is_fast = self._settings.durability == "fast"
        commands = [command] if is_fast else [command, self._wait_command()]
        wait_s = 0.0 if is_fast else self._settings.durability_timeout_ms / 1000
        if ask_host is None:
            connection = self._open_connection() or await self._connect()
        else:
            # The slot is being moved. ASKING applies to the next command on the connection, so send both in one write.
            commands.insert(0, ("ASKING",))
            connection = await self._connection_to(ask_host)
        try:
            replies = await connection.pipeline(commands, self._client.settings.socket_timeout_s + wait_s)
        finally:
            if ask_host is not None and not is_fast:
                await connection.close()
        if ask_host is not None:
            del replies[0]
        if isinstance(replies[0], PenstockError):
            raise replies[0]
        return replies

    async def _connect(self) -> Connection:
        await self._check_can_confirm()
        self._connection = await self._connection_to(None)
        self._scope, self._was_connected = connection_scope(), True
        return self._connection

    async def _connection_to(self, ask_host: Host | None) -> Connection:
        if self._settings.durability == "fast":
            return await self._client.connection(self._keys.stream, ask_host)
        # WAIT is about the writes of its own connection, and would block others that share it.
        return await self._client.dedicated(self._keys.stream, ask_host)

    def _wait_command(self) -> Command:
        timeout_ms = self._settings.durability_timeout_ms
        if self._settings.durability == "local":
            return ("WAITAOF", 1, 0, timeout_ms)
        return ("WAIT", self._settings.replicas, timeout_ms)

    async def _check_can_confirm(self) -> None:
        # Check before writing: afterwards, the caller would get an error although the entry exists.
        if self._settings.durability == "local":
            (await self._client.capabilities()).check_local_durability()

    async def _disconnect(self) -> None:
        if self._connection is not None and self._settings.durability != "fast":
            await self._connection.close()
        self._connection = None

    # --- what the server said -----------------------------------------------------------------------

    def _answers(self, replies: list[Reply]) -> list[Answer]:
        dropped, _, text = replies[0].decode().partition(" ")
        if dropped != "0":
            self._on_dropped(int(dropped))
        if _RANGE in text:
            first, _, last = text.partition(_RANGE)
            ms, _, seq = first.partition("-")
            numbers = range(int(seq), int(last.partition("-")[2]) + 1)
            answers: list[Answer] = list(map(f"{ms}-".__add__, map(str, numbers)))
        else:
            ids = text.split(" ")
            answers = [self._answer(item) for item in ids] if _FULL in text or _SAME in text else [*ids]
        return self._if_durable(replies[1], answers) if len(replies) > 1 else answers

    def _answer(self, item: str) -> Answer:
        if item == _FULL:
            return StreamFull(
                f"stream {self._stream!r} has reached max_len={self._settings.max_len}, and a group still needs "
                "its entries; add consumers, raise max_len, or set on_full='block' or 'drop_oldest'"
            )
        return Duplicate(item[1:]) if item.startswith(_SAME) else item

    def _if_durable(self, reply: Reply, answers: list[Answer]) -> list[Answer]:
        # Returns the answers; if the server did not confirm them, each id is replaced by its own NotDurable.
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
        text = f"written to stream {self._stream!r}, but {why}; a crash or failover may lose it"
        return [NotDurable(text, [answer]) if isinstance(answer, str) else answer for answer in answers]


def _messages(items: list[Item]) -> list[Encoded]:
    if len(items) == 1:
        return items[0].messages if isinstance(items[0], PublishCall) else [items[0]]
    messages: list[Encoded] = []
    for item in items:
        if isinstance(item, PublishCall):
            messages += item.messages
        else:
            messages.append(item)
    return messages


def _distribute(items: list[Item], answers: list[Answer]) -> None:
    start = 0
    for item in items:
        if isinstance(item, PublishCall):
            end = start + len(item.messages)
            if not item.promise.done():  # the caller was cancelled
                item.promise.set_result(answers[start:end])
            start = end
        else:
            if item.promise is not None and not item.promise.done():
                item.promise.set_result(answers[start])
            start += 1


def _fail(items: list[Item], error: BaseException) -> None:
    for item in items:
        if item.promise is not None and not item.promise.done():
            item.promise.set_exception(error)


def _own(error: PenstockError, message: Encoded) -> PenstockError:
    # A copy for each caller: one exception raised in many tasks would mix their tracebacks.
    own = copy.copy(error)
    if isinstance(own, PublishUnknown):
        own.message_ids = (message.message_id,)
    return own
