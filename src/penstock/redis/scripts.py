"""The Lua scripts in the folder `lua`, each of which is one state transition.

A script is named after its path: `tasks/enqueue`. A line `-- include: shared/ids.lua` includes a part.

A ScriptRunner runs scripts in a background thread, such as the one that renews leases while the caller is busy. It uses
the blocking transport in both APIs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from penstock.errors import PenstockError, ReadOnlyServer
from penstock.redis.blocking import Connection, Reply
from penstock.redis.blocking_locator import Locator
from penstock.redis.packing import Command
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import Redirected, ScriptMissing

_INCLUDE = re.compile(r"^-- include: (\w+/\w+)\.lua\n", re.MULTILINE)
_FOLDER = files(__package__) / "lua"
_PART_MARKER = "-- Included by "
MAX_BYTES = 2 << 20  # that one call writes: a megabyte blocks the server for 1 to 2 ms


@dataclass(frozen=True, slots=True)
class Script:
    """One script, known to the server by the hash of its source."""

    name: str
    source: str
    sha: str


def part(name: str) -> str:
    """Return the source of a script or part, with everything that it includes, each part once."""
    included: set[str] = set()

    def text(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        return _INCLUDE.sub(lambda match: text(match[1]), (_FOLDER / f"{name}.lua").read_text())

    return text(name)


@cache
def script(name: str) -> Script:
    """Load a script and what it includes."""
    source = part(name)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def names() -> tuple[str, ...]:
    """Return the names of all scripts, without the parts that they include."""
    found = (f"{folder.name}/{file.name}" for folder in _FOLDER.iterdir() for file in folder.iterdir())
    scripts = (path.removesuffix(".lua") for path in found)
    return tuple(sorted(name for name in scripts if not part(name).startswith(_PART_MARKER)))


def steps(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Split items into calls of at most `most` items and MAX_BYTES; a single item may be larger."""
    start = size = 0
    for end, more in enumerate(sizes):
        if end > start and (end - start == most or size + more > MAX_BYTES):
            yield slice(start, end)
            start, size = end, 0
        size += more
    if sizes:
        yield slice(start, len(sizes))


class Call(NamedTuple):
    """A script to run on the server of a key, with arguments that begin with the number of keys."""

    key: str
    script: Script | None  # None = `args` are a command
    args: Command

    def command(self, *, by_hash: bool = True) -> Command:
        """Return the command to send."""
        if self.script is None:
            return self.args
        return ("EVALSHA", self.script.sha, *self.args) if by_hash else ("EVAL", self.script.source, *self.args)


class ScriptRunner:
    """Runs scripts over its own connection to each server, reopened when it breaks."""

    def __init__(self, settings: ConnectionSettings, key: str = "") -> None:
        self._locator, self._key = Locator(settings), key
        self._connections: dict[Host, Connection] = {}

    def run(self, script: Script, args: Command, timeout_s: float | None = None) -> Reply:
        """Run a script once, on the server of the runner's key. The caller decides whether to try again."""
        reply = self.run_all([Call(self._key, script, args)], timeout_s)[0]
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    def run_all(self, calls: Sequence[Call], timeout_s: float | None = None) -> list[Reply]:
        """Run calls once, in one round trip to each server; an error reply is returned, not raised."""
        if any(not connection.is_open for connection in self._connections.values()):
            # Another server may serve the keys by now.
            self._connections = {host: one for host, one in self._connections.items() if one.is_open}
            self._locator.refresh()
        by_host: dict[Host, list[int]] = {}
        for index, call in enumerate(calls):
            by_host.setdefault(self._locator.locate(call.key), []).append(index)
        replies: list[Reply] = [None] * len(calls)
        for host, indexes in by_host.items():
            answers = self._send(host, [calls[index] for index in indexes], timeout_s)
            for index, answer in zip(indexes, answers, strict=True):
                replies[index] = self._followed(host, calls[index], answer, timeout_s)
        return replies

    def _send(self, host: Host, calls: Sequence[Call], timeout_s: float | None) -> list[Reply]:
        connection = self._open(host)
        replies = connection.pipeline([call.command() for call in calls], timeout_s)
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, ScriptMissing)]
        if missing:
            answers = connection.pipeline([calls[index].command(by_hash=False) for index in missing], timeout_s)
            for index, answer in zip(missing, answers, strict=True):
                replies[index] = answer
        return replies

    def _followed(self, host: Host, call: Call, reply: Reply, timeout_s: float | None) -> Reply:
        if isinstance(reply, Redirected) and reply.ask_host is not None:
            # The slot is being moved: ask the other node this time. It may not know the script.
            command = call.command(by_hash=False)
            return self._open(reply.ask_host).pipeline([("ASKING",), command], timeout_s)[-1]
        if isinstance(reply, Redirected) and reply.moved_to is not None:
            # Without loading the whole map again, which may take longer than a lease on a busy machine.
            self._locator.move(reply.slot, reply.moved_to)
            return self._send(reply.moved_to, [call], timeout_s)[0]
        if isinstance(reply, Redirected | ReadOnlyServer):
            self._connections[host].abort()  # a server that became a replica keeps connections open
        return reply

    def _open(self, host: Host) -> Connection:
        connection = self._connections.get(host)
        if connection is None or not connection.is_open:
            connection = self._connections[host] = self._locator.connect(host)
        return connection

    def abort(self) -> None:
        """Close the connections immediately, from any thread; waiting callers get ConnectionLost."""
        for connection in list(self._connections.values()):
            connection.abort()

    def close(self) -> None:
        """Close everything that was opened."""
        self.abort()
