"""A TCP proxy in front of a server that loses replies, delays them, swallows them and resets connections on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Self

from penstock.redis.embedded import LOOPBACK, free_port
from penstock.redis.probe import SocketAddress
from penstock.testing.faults import Ending, Fault, FaultBoard
from penstock.testing.proxied_link import ProxiedLink

_CONTROL_TIMEOUT_S = 30.0


class FaultProxy:
    """Forwards a loopback port to a server (a unix socket's path, or host and port) and misbehaves as it is told.

    It runs in a thread of its own, so that async and sync tests use it alike; every switch has taken effect when the
    call returns. A server that redirects its clients (a cluster) is reached around the proxy. Traffic that is not RESP
    (TLS, say) passes as it is, and only the faults that need no commands apply to it.
    """

    def __init__(self, target: SocketAddress) -> None:
        self.port = free_port()
        self._target = target
        self._board = FaultBoard()
        self._links: set[ProxiedLink] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL under which clients reach the server through the proxy."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return len(self._links)

    def start(self) -> Self:
        """Opens the port."""
        self._thread.start()
        self._run(self._listen)
        return self

    def stop(self) -> None:
        """Closes the port and every connection."""
        if self._loop.is_closed():
            return
        self._run(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- the faults -------------------------------------------------------------------------------

    def drop_reply(self, command: str, nth: int = 1, *, containing: bytes = b"", ending: Ending = "close") -> Fault:
        """Loses the reply to the nth such command from now: the server has executed it, the client never knows.

        `containing` narrows the commands to those with these bytes in some word: a key, say, or a script's hash. After
        the loss the connection is closed, reset, or stays open and mute.
        """
        return self._board.arm(Fault(command, nth, containing, "reply", ending))

    def cut_reply(self, command: str, nth: int = 1, *, containing: bytes = b"", ending: Ending = "close") -> Fault:
        """Delivers the first half of the reply to the nth such command from now, and nothing after it."""
        return self._board.arm(Fault(command, nth, containing, "half", ending))

    def drop_request(self, command: str, nth: int = 1, *, containing: bytes = b"", ending: Ending = "close") -> Fault:
        """Loses the nth such command itself: the server never sees it, and the client cannot tell the difference."""
        return self._board.arm(Fault(command, nth, containing, "request", ending))

    def late_request(self, command: str, seconds: float, nth: int = 1, *, containing: bytes = b"") -> Fault:
        """Has the nth such command reach the server only so much later, even if its sender is gone by then."""
        return self._board.arm(Fault(command, nth, containing, "nothing", "close", seconds))

    def delay_replies(self, seconds: float) -> None:
        """Holds every reply back for so long, from now on; 0 ends it."""
        self._switch(lambda: setattr(self._board, "delay_s", seconds))

    def hold_replies(self) -> None:
        """Holds every reply back, from now on, until `release_replies()`."""
        self._switch(lambda: setattr(self._board, "is_holding", True))

    def release_replies(self) -> None:
        """Delivers what was held back; later replies are prompt again."""
        self._switch(self._release)

    def black_hole(self) -> None:
        """Swallows every byte in both directions; connections open and stay open, as behind a dead router.

        Connections that live through it have lost bytes and stay mute after `heal()`, until somebody closes them.
        """
        self._switch(self._drop_bytes)

    def reset_all(self) -> None:
        """Resets (RST) every open connection; new ones are welcome."""
        self._switch(self._reset)

    def refuse(self) -> None:
        """Refuses new connections; those that are open stay."""
        self._run(self._stop_listening)

    def heal(self) -> None:
        """Ends all faults: what is armed is disarmed, replies are prompt, connections are accepted."""
        self._board.clear()
        self._run(self._listen)
        self._switch(self._release)

    # --- what was seen ----------------------------------------------------------------------------

    def count(self, command: str) -> int:
        """Returns how many commands of this name have come by."""
        return self._board.count(command)

    def wait_for(self, command: str, count: int = 1, timeout_s: float = 30.0) -> bool:
        """Blocks until so many commands of this name have come by; returns False when the time is over first."""
        return self._board.wait_for(command, count, timeout_s)

    # --- in the proxy's thread --------------------------------------------------------------------

    def _new_link(self) -> asyncio.Protocol:
        return ProxiedLink(self._target, self._board, self._links.add, self._links.discard).client

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await self._loop.create_server(self._new_link, LOOPBACK, self.port)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for listening in listener.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(
                0
            )  # who has just been let in takes a seat: asyncio stumbles if the server closes meanwhile
        listener.close()

    def _drop_bytes(self) -> None:
        self._board.is_black_hole = True
        for link in self._links:
            link.drop_bytes()

    def _release(self) -> None:
        self._board.is_holding = False
        for link in tuple(self._links):
            link.release()

    def _reset(self) -> None:
        for link in tuple(self._links):
            link.end("reset")

    async def _close(self) -> None:
        await self._stop_listening()
        while self._links:
            self._reset()
            await asyncio.sleep(0)  # a transport reports its end in the next turn of the loop

    # --- from the tests' threads ------------------------------------------------------------------

    def _switch(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()

        self._run(changed)

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def done() -> None:
            await work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(_CONTROL_TIMEOUT_S)
