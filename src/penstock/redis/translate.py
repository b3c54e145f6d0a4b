"""Driver exceptions and error replies become errors of this library, at this border and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import redis.exceptions as driver

from penstock import errors


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies; raise the first error among them."""
    for reply in replies:
        if isinstance(reply, errors.PenstockError):
            raise reply
    return replies


class Redirected(errors.ServerBusy):
    """The cluster says that another node serves the slot (internal: the client follows it)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, slot, address = text.split(" ")[:3]
        host, _, port = address.rpartition(":")
        self.slot = int(slot)
        self.ask_host = (host, int(port)) if kind == "ASK" else None
        """The server to ask for this one command, after ASKING; None = look up which server has the slot now."""
        self.moved_to = (host, int(port)) if kind == "MOVED" and host else None
        """The server that has the slot from now on, unless the reply omits its host."""


class ScriptMissing(errors.ServerBusy):
    """The server does not know the script (internal: it is sent along)."""


_BY_CODE: dict[str, type[errors.PenstockError]] = {
    "NOSCRIPT": ScriptMissing,
    "MOVED": Redirected,
    "ASK": Redirected,
    "NOGROUP": errors.GroupLost,
    "UNBLOCKED": errors.GroupLost,
    "OOM": errors.OutOfMemory,
    "WRONGTYPE": errors.WrongType,
    "NOPERM": errors.PermissionDenied,
    "NOAUTH": errors.AuthenticationFailed,
    "WRONGPASS": errors.AuthenticationFailed,
    "READONLY": errors.ReadOnlyServer,
    "MASTERDOWN": errors.ReadOnlyServer,
    "LOADING": errors.ServerBusy,
    "BUSY": errors.ServerBusy,
    "TRYAGAIN": errors.ServerBusy,
    "CLUSTERDOWN": errors.ServerBusy,
    "NOREPLICAS": errors.NotReplicating,
    "CROSSSLOT": errors.ClusterSlotError,
    "FENCED": errors.ConsumerNameTaken,
    "MISCONF": errors.TransientError,
}
# Replies whose text says more than their code.
_BY_TEXT: dict[str, type[errors.PenstockError]] = {
    "instance state changed": errors.ReadOnlyServer,  # UNBLOCKED: it became a replica while the command waited
    "no such key": errors.GroupLost,  # XINFO, also inside a script, of a stream that was deleted
    "user executing the script can't": errors.PermissionDenied,  # inside a script, up to 7.0
    "ACL failure in script": errors.PermissionDenied,  # likewise, later
    "Protocol error: unauthenticated": errors.AuthenticationFailed,  # to a command too long for one without a password
}
# A script error carries the code of the command that failed in it, behind words that differ between servers.
_IN_SCRIPT = re.compile(r"\b(OOM|WRONGTYPE|NOPERM|NOGROUP|READONLY|NOREPLICAS|MISCONF)\b")
_HINTS: dict[type[errors.PenstockError], str] = {
    errors.GroupLost: "the stream or its consumer group does not exist",
    errors.OutOfMemory: "the server is at its memory limit (maxmemory); free memory or raise it",
    errors.AuthenticationFailed: "check the user name and the password, as in redis://user:password@host",
    errors.PermissionDenied: "the ACL of this user does not allow it; see `penstock acl`",
    errors.WrongType: "the key holds another type than expected; choose another name, or remove the key",
}


# What the server says about the database of the URL.
_NO_DATABASE = {
    "DB index is out of range": "databases are counted from 0, and their number is its setting `databases`, or "
    "`cluster-databases` on a cluster; use a smaller number at the end of the URL",
    "SELECT is not allowed in cluster mode": "a cluster has only database 0; leave the number at the end of the URL "
    "out, and use redis+cluster://",
}
# What redis-py raises while it logs in.
_AT_LOGIN: tuple[tuple[tuple[type[Exception], ...], type[errors.PenstockError], str], ...] = (
    (
        (driver.AuthenticationError, driver.AuthenticationWrongNumberOfArgsError),
        errors.AuthenticationFailed,
        "rejected the credentials",
    ),
    ((driver.NoPermissionError,), errors.PermissionDenied, "refused the connection"),
    ((driver.BusyLoadingError,), errors.ServerBusy, "is loading its data; try again shortly"),
)


def error_reply(text: str) -> errors.PenstockError:
    """Turn the text of an error reply into an error."""
    by_text = next((kind for part, kind in _BY_TEXT.items() if part in text), None)
    found = by_text or _BY_CODE.get(text.partition(" ")[0])
    if found is None and (match := _IN_SCRIPT.search(text)):
        found = _BY_CODE[match.group(1)]
    if found is None:
        if "invalid password" in text or "invalid username" in text:
            return errors.AuthenticationFailed(f"Redis rejected the credentials: {text}")
        if "unknown command" in text.lower() or "unknown subcommand" in text.lower():
            return errors.UnsupportedServer(f"the server does not support a command: {text}")
        return errors.ServerError(f"Redis answered: {text}")
    if found in (Redirected, ScriptMissing):
        return found(text)
    hint = _HINTS.get(found)
    return found(f"Redis answered: {text}" + (f" ({hint})" if hint else ""))


def connect_error(error: BaseException, where: str) -> errors.PenstockError:
    """Turn what a failed connection attempt raised into an error that names the server, never a secret."""
    wrappers = driver.RedisClusterException | driver.ConnectionError
    if isinstance(error, wrappers) and isinstance(error.__cause__, driver.RedisError):
        # What the last node of a cluster said, or the server behind a unix socket: redis-py wraps both.
        return connect_error(error.__cause__, where)
    for kinds, made, says in _AT_LOGIN:
        if isinstance(error, kinds):
            hint = _HINTS.get(made)
            return made(f"Redis at {where} {says}: {error}" + (f" ({hint})" if hint else ""))
    if isinstance(error, driver.ResponseError):
        remedy = next((says for text, says in _NO_DATABASE.items() if text in str(error)), None)
        if remedy is not None:
            return errors.ServerError(f"Redis at {where} does not have this database ({error}): {remedy}")
        return error_reply(str(error))
    return errors.ConnectionFailed(_why_not(error, where))


def driver_error(error: Exception, where: str) -> errors.PenstockError:
    """Turn what redis-py raised on an open connection into an error."""
    if isinstance(error, driver.ResponseError):
        return error_reply(str(error))
    if isinstance(error, OSError | TimeoutError | driver.RedisError):
        return errors.ConnectionLost(f"the connection to Redis at {where} broke: {error}")
    raise error


def _why_not(error: BaseException, where: str) -> str:
    if isinstance(error, TimeoutError | driver.TimeoutError):
        return (
            f"no answer from Redis at {where} within the connect timeout; check that the server is running "
            "there and that TLS is configured correctly"
        )
    why = errors.text_of(error).rstrip(".")
    return (
        f"cannot connect to Redis at {where}: {why}; check that the server is running and that host, port "
        "and TLS are correct"
    )
