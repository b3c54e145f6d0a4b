"""The outbox of one producer: what many callers push at the same time leaves together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

from penstock.delivery.encoding import Encoded
from penstock.delivery.publisher import Answer, Publisher
from penstock.errors import PenstockError, PublishUnknown
from penstock.redis.aio import Command, Reply
from penstock.runtime.aio import Combiner, Promise, new_promise


class Parcel:
    """The messages of one call, and the promise that it waits for."""

    __slots__ = ("messages", "promise")

    def __init__(self, messages: list[Encoded], promise: Promise[list[Answer]]) -> None:
        self.messages, self.promise = messages, promise


Item: TypeAlias = Parcel | Encoded  # a single message needs no wrapping


class Outbox:
    """Collects messages of one producer and publishes them in batches."""

    def __init__(
        self,
        publisher: Publisher,
        on_answers: Callable[[list[Answer]], None],
        linger_s: float,
        max_batch: int,
        max_buffered: int,
        is_simple: bool,
    ) -> None:
        self._publisher, self._on_answers, self._max_batch = publisher, on_answers, max_batch
        self._combiner: Combiner[Item] = Combiner(self._send, linger_s, max_buffered)
        self.is_full = self._combiner.is_full  # asked before every post
        if is_simple:
            self._combiner.express = self._try_send

    def post(self, message: Encoded) -> Promise[Answer]:
        """Take a message in; the promise is its answer."""
        promise = message.promise = new_promise()
        self._combiner.put(message)
        return promise

    def post_many(self, messages: list[Encoded]) -> Promise[list[Answer]]:
        """Take messages in; the promise are their answers."""
        promise: Promise[list[Answer]] = new_promise()
        self._combiner.put(Parcel(messages, promise))
        return promise

    async def wait_for_room(self) -> None:
        """Wait until more can be posted."""
        await self._combiner.wait_for_room()

    async def close(self) -> None:
        """Wait for what is under way and give up the connection."""
        await self._combiner.flush()
        await self._publisher.close()

    def _try_send(self, items: list[Item], done: Callable[[], None]) -> bool:
        """Send a batch in one step, if all is well; False = it must go the long way.

        The hot path: the connection itself hands out the reply, which saves a task and two turns of the event loop.
        """
        connection = self._publisher.open_connection()
        lone = items[0] if len(items) == 1 and type(items[0]) is Encoded else None
        messages = _messages(items) if lone is None else [lone]
        if connection is None or len(messages) > self._max_batch:
            return False
        command = self._publisher.compose(messages)

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, PenstockError):
                again = items, messages, command, reply
                self._combiner.go_on(self._send_again(*again))  # sync: self._send_again(*again)
            elif lone is not None:
                answer = self._publisher.lone_answer(reply)
                self._on_answers([answer])
                if not lone.promise.done():  # the caller was cancelled
                    lone.promise.set_result(answer)
                done()
            else:
                answers = self._publisher.answers([reply])
                self._on_answers(answers)
                _distribute(items, answers)
                done()

        try:
            connection.post(on_reply, command)
        except BaseException as error:
            _fail(items, error)
            raise
        return True

    async def _send_again(
        self, items: list[Item], messages: list[Encoded], command: Command, failure: PenstockError
    ) -> None:
        try:
            answers = self._publisher.answers(await self._publisher.exchange(command, messages, failure))
            self._on_answers(answers)
        except PenstockError as error:
            answers = [_own(error, message) for message in messages]
        _distribute(items, answers)

    async def _send(self, items: list[Item]) -> None:
        messages = _messages(items)
        answers: list[Answer] = []
        try:
            for start in range(0, len(messages), self._max_batch):
                answers += await self._send_chunk(messages[start : start + self._max_batch])
        except BaseException as error:
            _fail(items, error)
            raise
        _distribute(items, answers)

    async def _send_chunk(self, messages: list[Encoded]) -> list[Answer]:
        try:
            answers = await self._publisher.publish(messages)
        except PenstockError as error:
            return [_own(error, message) for message in messages]
        self._on_answers(answers)
        return answers


def _messages(items: list[Item]) -> list[Encoded]:
    if len(items) == 1 and isinstance(items[0], Parcel):
        return items[0].messages
    messages: list[Encoded] = []
    for item in items:
        if isinstance(item, Parcel):
            messages += item.messages
        else:
            messages.append(item)
    return messages


def _distribute(items: list[Item], answers: list[Answer]) -> None:
    start = 0
    for item in items:
        if isinstance(item, Parcel):
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
    # Every caller gets an error of its own: one exception raised in many tasks would mix their tracebacks.
    own = copy.copy(error)
    if isinstance(own, PublishUnknown):
        own.message_ids = (message.message_id,)
    return own
