"""A way to Redis for a thread that works beside the caller: heartbeats speak through it, whatever the caller is doing.

Shared by the async and the sync half: it is the blocking lane for both.
"""

from __future__ import annotations

from penstock.errors import PenstockError, ReadOnlyServer
from penstock.redis.blocking import Command, Connection, Reply
from penstock.redis.blocking_locator import Locator
from penstock.redis.scripts import Script
from penstock.redis.settings import ConnectionSettings, Host
from penstock.redis.translate import Redirected, ScriptMissing


class ScriptRunner:
    """Runs scripts on the server of one key, over a connection of its own that is opened again when it broke."""

    def __init__(self, settings: ConnectionSettings, key: str) -> None:
        self._locator, self._key = Locator(settings), key
        self._connection: Connection | None = None

    def run(self, script: Script, args: Command, timeout_s: float | None = None) -> Reply:
        """Run a script once; `args` begin with the number of keys. The caller decides whether to try again."""
        try:
            return self._run(self._open(), script, args, timeout_s=timeout_s)
        except Redirected as error:
            if error.asked is not None:
                return self._ask(error.asked, script, args)
            self.abort()
            if error.moved_to is None:
                raise
            # At once, and without learning the whole map anew: on a busy machine that may take longer than a lease.
            self._connection = self._locator.connect(error.moved_to)
            return self._run(self._connection, script, args, timeout_s=timeout_s)
        except ReadOnlyServer:
            self.abort()  # it was made a replica and hangs up on nobody
            raise

    def _open(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_open:
            if connection is not None:
                self._locator.refresh()  # another server may serve the key by now
            connection = self._connection = self._locator.connect(self._locator.locate(self._key))
        return connection

    @staticmethod
    def _run(
        connection: Connection, script: Script, args: Command, *before: Command, timeout_s: float | None = None
    ) -> Reply:
        reply = connection.pipeline([*before, ("EVALSHA", script.sha, *args)], timeout_s)[-1]
        if isinstance(reply, ScriptMissing):
            reply = connection.pipeline([*before, ("EVAL", script.source, *args)], timeout_s)[-1]
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    def _ask(self, asked: Host, script: Script, args: Command) -> Reply:
        # The slot is on the move: this once the other node is asked.
        connection = self._locator.connect(asked)
        try:
            return self._run(connection, script, args, ("ASKING",))
        finally:
            connection.close()

    def abort(self) -> None:
        """Break the connection off, from any thread; whoever waits for a reply gets ConnectionLost."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close everything that was opened."""
        self.abort()
        self._locator.close()
