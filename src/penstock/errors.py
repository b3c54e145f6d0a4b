"""Every error that Penstock raises to its users, under one root."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence

_RAISE = dis.opmap["RAISE_VARARGS"]


class PenstockError(Exception):
    """The root of all errors of this library."""


MAX_TEXT = 2_000  # characters of what an error says
_MAX_NAME = 200


def text_of(error: BaseException, to_text: Callable[[BaseException], str] = str) -> str:
    """Return the beginning of what an error says, as text that can be stored, even if saying it fails."""
    # Whatever a user's __str__ raises, SystemExit included: this is called where a failure is being dealt with.
    try:
        return _storable(to_text(error), MAX_TEXT)
    except BaseException as failure:
        return f"{name_of(error)}; formatting it raised {name_of(failure)}"


def name_of(error: BaseException) -> str:
    """Return the name of the class of an error, even if its metaclass makes a secret of it."""
    try:
        return _storable(type(error).__name__, _MAX_NAME)
    except BaseException:
        return "an unnamed error"


def summary_of(error: BaseException) -> str:
    """Return class and text of an error, as the last line of a traceback has them."""
    text = text_of(error)
    return f"{name_of(error)}: {text}" if text else name_of(error)


def cut(text: object, length: int = 200) -> str:
    """Return a text, or what an error says, shortened for a message."""
    whole = text_of(text) if isinstance(text, BaseException) else str(text)
    return whole if len(whole) <= length else f"{whole[:length]}..."


def _storable(text: str, most: int) -> str:
    # Without lone surrogates, which UTF-8 cannot hold; a plain text also where a subclass was returned.
    return str.encode(str.__getitem__(text, slice(most)), errors="replace").decode()


EXITS = (SystemExit, KeyboardInterrupt)  # raised by a handler they end the process, and are a failed attempt


def was_raised(error: BaseException) -> bool:
    """Return whether code raised the error, unlike Ctrl-C or closing a generator, which interrupt code anywhere."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


class ConfigurationError(PenstockError, ValueError):
    """A parameter, name or URL is unusable; the message says which, why and what to write instead."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """A parameter has the wrong type; the message says which type to pass instead."""


class SettingsError(ConfigurationError):
    """The settings (file, environment, flags) are unusable; the message names the place. Commands end with code 2."""


# --- Redis and the connection to it ---------------------------------------------------------------


class RedisError(PenstockError):
    """Redis rejected a command, or the connection to it failed."""


class TransientError(RedisError):
    """A temporary failure: the same call may succeed later."""


class PermanentError(RedisError):
    """A failure that persists until the server, the rights or the configuration change."""


class ConnectionFailed(TransientError):
    """No connection could be made; the command was certainly not executed."""


class ConnectionLost(TransientError):
    """The connection broke after the command was written; whether it was executed is unknown."""


class CommandTimeout(ConnectionLost):
    """The server did not answer in time; whether the command was executed is unknown."""


class ServerBusy(TransientError):
    """The server is loading or runs a long script, or a cluster slot is being moved; nothing was executed."""


class ReadOnlyServer(TransientError):
    """The server is a replica, as happens during a failover; nothing was executed."""


class OutOfMemory(TransientError):
    """The server is at its memory limit and refused the write; nothing was executed."""


class GroupLost(TransientError):
    """The stream or its consumer group does not exist, or no longer does."""


class NotReplicating(TransientError):
    """The server has fewer replicas than `min-replicas-to-write`; nothing was executed."""


class ServerError(RedisError):
    """Any other error reply of the server."""


class AuthenticationFailed(PermanentError):
    """The server rejected the user name or password."""


class PermissionDenied(PermanentError):
    """The ACL of the user forbids the command or the key."""


class WrongType(PermanentError):
    """A key holds another type than the expected one, such as a stream."""


class ClusterSlotError(PermanentError, ConfigurationError):
    """Keys that must change together are in different cluster slots."""


class ClientClosed(PermanentError):
    """The StreamClient was closed by its owner; nothing was sent."""


class UnsupportedServer(PermanentError):
    """The server is too old, or does not have a command that the chosen setting needs."""


# --- publishing -----------------------------------------------------------------------------------


class PublishError(PenstockError):
    """A message was not accepted."""


class StreamFull(PublishError):
    """The stream has reached `max_len`, and a group still needs its entries; the message was not added.

    After push_many(), `ids` are the entries of the same call that still found room.
    """

    ids: tuple[str, ...] = ()


class QueueFull(StreamFull):
    """The queue has reached `max_pending_length`; the message was not added."""


class QueueDrained(PublishError):
    """The queue object was drained: it accepts and delivers no more messages."""


class PublishUnknown(PublishError):
    """The connection broke and the retry budget ran out: the messages may or may not be in the stream.

    `message_ids` are the ids chosen by the producer, so that the caller can look for them or publish again
    with the same `dedup_key`. After push_many(), `ids` are the entries of the same call that were accepted.
    """

    ids: tuple[str, ...] = ()

    def __init__(self, text: str, message_ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.message_ids = tuple(message_ids)


class NotDurable(PublishError):
    """The messages are in the stream, but the chosen durability was not confirmed in time.

    `ids` are the entries that were written.
    """

    def __init__(self, text: str, ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


# --- payloads -------------------------------------------------------------------------------------


class SerializationError(PenstockError):
    """A payload could not be turned into bytes or back."""


class EncodeError(SerializationError, TypeError, ValueError):
    """The payload cannot be encoded; the message names the place in it."""


class PayloadTooLarge(EncodeError):
    """The encoded payload exceeds the serializer's `max_bytes`, or `max_payload_bytes` of a queue."""


class DecodeError(SerializationError, ValueError):
    """The bytes of an entry are not what the serializer writes."""


class NotAuthentic(DecodeError):
    """A payload is not signed or encrypted as its reader requires, or not for this stream and message id."""


# --- leases and consumers -------------------------------------------------------------------------


class LeaseLost(PenstockError):
    """The message now belongs to another consumer; the former holder can no longer settle it."""


class HandlerTimeout(PenstockError):
    """The handler of a consumer, a pipeline or a reprocessing run exceeded its timeout."""


class ConsumerNameTaken(PenstockError):
    """A newer process runs under the same `worker_name`; this one is fenced off and stops."""


class WorkerDied(PenstockError):
    """In a dead letter: the process that held the message ended, or went silent, in its last permitted run."""

    @classmethod
    def in_attempt(cls, number: int) -> WorkerDied:
        """Return the error of a message whose process died in attempt `number`."""
        return cls(
            f"the process that held this message ended or stopped renewing its lease in attempt {number}: "
            "killed, os._exit() or out of memory?"
        )


NOT_OF_ONE_MESSAGE = (TransientError, PermanentError, ConsumerNameTaken)
"""Errors that concern all messages; any other error in settling a message concerns only that message."""


class GatewayContractError(PenstockError, TypeError):
    """A gateway broke its contract, and continuing could settle a message that another consumer holds."""


# --- results --------------------------------------------------------------------------------------


class BackendError(PenstockError):
    """A result back-end could not save or read; saved results are untouched, and no partial result is visible."""


class BackendUnavailable(BackendError):
    """A temporary failure (server down, disk full, no answer): the same call may succeed later."""


class BackendRefused(BackendError):
    """A failure that persists until the store, the rights or the configuration change."""


# --- the balancer ---------------------------------------------------------------------------------


class AlreadyClaimed(PenstockError):
    """The data stream already has an owner, or is finished."""


class StreamNotOwned(PenstockError):
    """This consumer does not own the data stream, or no longer does; nothing was changed."""


class OwnershipLost(StreamNotOwned, LeaseLost):
    """Another consumer now owns the data stream; the former owner can no longer change it."""


class MalformedEntry(DecodeError):
    """An entry of a load balancer stream names no data stream."""


# --- verdicts that a handler may raise ------------------------------------------------------------


class FatalError(PenstockError):
    """Raised by a handler to dead-letter the message without further retries."""


_LONGEST_DELAY_S = 100 * 365 * 86_400


def _checked_delay(delay_s: object) -> float:
    # Raised inside the handler, where it counts as a failed attempt like any other mistake.
    if isinstance(delay_s, int | float) and 0 <= delay_s <= _LONGEST_DELAY_S:
        return delay_s
    raise ConfigurationError(f"delay_s={delay_s!r} must be a number of seconds from 0 to 100 years")


def delay_asked_s(error: RetryLater | Snooze) -> float | None:
    """Return the delay that a handler asks for; None = a subclass has lost it, so this is a failure like any other."""
    try:
        return _checked_delay(error.delay_s)
    except Exception:
        return None


class RetryLater(PenstockError):
    """Raised by a handler to fail the attempt and retry after its own delay instead of the back-off."""

    def __init__(self, delay_s: float, reason: str = "") -> None:
        self.delay_s = _checked_delay(delay_s)
        super().__init__(reason or f"retry in {delay_s} s")

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, for handlers that run in another process."""
        return type(self), (self.delay_s, str(self))


class Snooze(PenstockError):
    """Raised by a handler to receive the message again after a delay, without counting an attempt."""

    def __init__(self, delay_s: float, reason: str = "") -> None:
        self.delay_s = _checked_delay(delay_s)
        super().__init__(reason or f"snooze for {delay_s} s")

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, for handlers that run in another process."""
        return type(self), (self.delay_s, str(self))


# --- Spark ---------------------------------------------------------------------------------------


class DataLost(PenstockError):
    """Entries of a stream were trimmed, or the stream was deleted, before a Spark query read them."""


class StreamMissing(PenstockError):
    """A stream that a Spark query should read does not exist."""


# --- tasks ----------------------------------------------------------------------------------------


class Skip(PenstockError):
    """Raised by the handler of a task to end it with a result of status `skip`."""


class TaskTimeout(PenstockError):
    """The handler of a task exceeded its `timeout_s`; counts as a failed run."""


class WorkerStopped(PenstockError):
    """The worker was asked to stop, and the grace period ended before the handler did; the task is returned."""


# --- operators ------------------------------------------------------------------------------------


class NotFound(PenstockError):
    """The stream, group, entry, queue, task or service with the given name does not exist."""
