"""How many commands the clients sent in a window, and how many the server executed.

The two differ by what scripts call. `INFO commandstats` (and `total_commands_processed`) count the calls inside
scripts as well, so they give only the second number. For the first, MONITOR is read: it prints every command with
its source, which is the client's address for a command that was sent and a bare word (`lua`) for one that a script
called. MONITOR costs the server time, so the window that is counted is never a window that is timed.
"""

from __future__ import annotations

import re
import socket
import uuid
from typing import Self

from bench.server import Server

# For example: +1700000000.123456 [0 127.0.0.1:51234] "XADD" "bench" ... or: +1700000000.123456 [0 lua] "XADD" ...
_LINE = re.compile(rb"^\+[0-9.]+ \[[0-9]+ (?P<source>[^\s]+)\] (?P<command>.*)$")


class CommandCount:
    """Counts from entry to `stop`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sent = 0
        self.executed = 0

    def __enter__(self) -> Self:
        self._own_source = self._server.own_address().encode()
        self._before = self._server.command_calls()
        self._monitor = socket.create_connection(("127.0.0.1", self._server.port), timeout=30)
        self._lines = self._monitor.makefile("rb")
        self._monitor.sendall(b"MONITOR\r\n")
        self._lines.readline()  # +OK
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._monitor.close()

    def stop(self) -> None:
        """Ends the window and fills in the two counts.

        Nothing reads the monitor's lines before this: the server and the kernel hold them meanwhile, so that
        counting takes no processor time from the peer.
        """
        end = uuid.uuid4().hex
        self._server.client.echo(end)
        self.executed = (self._server.command_calls() - self._before).total()
        for line in self._lines:
            match = _LINE.match(line.rstrip(b"\r\n"))
            if match is None:
                continue
            if end.encode() in match["command"]:
                return
            if b":" in match["source"] and match["source"] != self._own_source:
                self.sent += 1
        raise RuntimeError("The server closed the MONITOR connection before the window ended.")
