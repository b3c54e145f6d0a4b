"""The peer that is measured, together with its interpreter: starts its processes."""

from __future__ import annotations

from dataclasses import dataclass

from bench.child import Publisher, Worker
from bench.environments import Interpreter
from bench.peers.params import Mode, Params
from bench.probe import ProbeReader
from bench.roster import Peer
from bench.server import Server

# Messages that a filling process holds in memory at once.
_CHUNK = 50_000


@dataclass(frozen=True)
class Subject:
    """A peer that can be started on this machine."""

    peer: Peer
    interpreter: Interpreter

    def publisher(self, server: Server, mode: Mode, rate: int = 0, *, note_bytes: int = 0) -> Publisher:
        """Starts a process that publishes."""
        return Publisher(
            self.interpreter,
            Params(
                self.peer.adapter,
                "publish",
                server.port,
                variant=self.peer.variant,
                mode=mode,
                rate=rate,
                note_bytes=note_bytes,
            ),
        )

    def worker(
        self,
        server: Server,
        probe: ProbeReader,
        *,
        stamps: bool = False,
        holds: bool = False,
        recovery_interval_ms: int = 0,
    ) -> Worker:
        """Starts a process that handles messages."""
        return Worker(
            self.interpreter,
            Params(
                self.peer.adapter,
                "work",
                server.port,
                variant=self.peer.variant,
                probe=probe.path,
                stamps=stamps,
                holds=holds,
                recovery_interval_ms=recovery_interval_ms,
            ),
        )

    def fill(self, server: Server, count: int) -> None:
        """Publishes so many messages in the quickest way the peer has."""
        mode: Mode = "bulk" if self.peer.pace.bulk else "fifty"
        with self.publisher(server, mode) as publisher:
            for start in range(0, count, _CHUNK):
                publisher.publish(min(_CHUNK, count - start))
