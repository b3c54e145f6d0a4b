"""Driver exceptions and error replies become errors of this library, at this border and nowhere else."""

from __future__ import annotations

import re

import redis.exceptions as driver
from redis.sentinel import MasterNotFoundError

from penstock import errors


class Redirected(errors.ServerBusy):
    """The cluster says that another node serves the slot (internal: the client follows it)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, _slot, address = text.split(" ")[:3]
        host, _, port = address.rpartition(":")
        self.asked = (host, int(port)) if kind == "ASK" else None
        """The server to ask for this one command, with ASKING before it; None = look up who serves the slot now."""


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
# A script error carries the code of the command that failed in it, behind words that differ between servers.
_IN_SCRIPT = re.compile(r"\b(OOM|WRONGTYPE|NOPERM|NOGROUP|READONLY|NOREPLICAS|MISCONF)\b")
_SAYS: dict[type[errors.PenstockError], str] = {
    errors.GroupLost: "the stream or its consumer group does not exist",
    errors.OutOfMemory: "the server is at its memory limit (maxmemory); free memory or raise it",
    errors.PermissionDenied: "the ACL of this user does not allow it",
    errors.WrongType: "a key holds another type than expected; choose another stream name or remove the key",
}


def error_reply(text: str) -> errors.PenstockError:
    """Turn the text of an error reply into an error."""
    code = text.partition(" ")[0]
    found = _BY_CODE.get(code)
    if code == "UNBLOCKED" and "instance state changed" in text:
        found = errors.ReadOnlyServer  # the server became a replica while the command waited
    if found is None and (match := _IN_SCRIPT.search(text)):
        found = _BY_CODE[match.group(1)]
    if found is None:
        if "invalid password" in text or "invalid username" in text:
            return errors.AuthenticationFailed(f"Redis refused the credentials: {text}")
        if "unknown command" in text.lower() or "unknown subcommand" in text.lower():
            return errors.UnsupportedServer(f"the server lacks a command: {text}")
        return errors.ServerError(f"Redis answered: {text}")
    if found in (Redirected, ScriptMissing):
        return found(text)
    hint = _SAYS.get(found)
    return found(f"Redis answered: {text}" + (f" ({hint})" if hint else ""))


def connect_error(error: BaseException, where: str) -> errors.PenstockError:
    """Turn what a failed connection attempt raised into an error that names the server, never a secret."""
    if isinstance(error, driver.AuthenticationError | driver.AuthenticationWrongNumberOfArgsError):
        return errors.AuthenticationFailed(f"Redis at {where} refused the credentials: {error}")
    if isinstance(error, driver.NoPermissionError):
        return errors.PermissionDenied(f"Redis at {where} refused the connection: {error}")
    if isinstance(error, driver.BusyLoadingError):
        return errors.ServerBusy(f"Redis at {where} is loading its data; try again shortly")
    if isinstance(error, driver.ResponseError):
        return error_reply(str(error))
    return errors.ConnectionFailed(_why_not(error, where))


def _why_not(error: BaseException, where: str) -> str:
    if isinstance(error, MasterNotFoundError):
        return f"no Sentinel at {where} knows a living master: {error}"
    if isinstance(error, TimeoutError | driver.TimeoutError):
        return f"no answer from Redis at {where} within the connect timeout; does it run there?"
    return f"cannot connect to Redis at {where}: {error}; does the server run there, are host, port and TLS right?"
