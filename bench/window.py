"""A measured window: what the peer and the server spent in it, and how much the rest of the machine disturbed it."""

from __future__ import annotations

import time

from bench import process_stat
from bench.figures import Figures

QUIET_CORES = 0.4
QUIET_PATIENCE_S = 2.0
QUIET_SAMPLE_S = 0.2


class Window:
    """Opens when it is made; `close` returns the figures."""

    def __init__(self, server_pid: int, peer_pid: int) -> None:
        self._server_pid = server_pid
        self._peer_pid = peer_pid
        self._server = process_stat.usage(server_pid)
        self._peer = process_stat.usage(peer_pid)
        self._machine_s = process_stat.machine_busy_s()
        self._driver_s = time.process_time()
        self._opened_at = time.monotonic()

    def close(self, messages: int) -> Figures:
        """Returns processor time a message, the server's wait for a core and the load of strangers."""
        wall_s = max(time.monotonic() - self._opened_at, 0.05)
        server = process_stat.usage(self._server_pid)
        server_s = server.cpu_s - self._server.cpu_s
        peer_s = process_stat.usage(self._peer_pid).cpu_s - self._peer.cpu_s
        known_s = server_s + peer_s + time.process_time() - self._driver_s
        return {
            "peer_cpu_us": peer_s / messages * 1e6,
            "server_cpu_us": server_s / messages * 1e6,
            "server_wait": (server.wait_s - self._server.wait_s) / wall_s,
            "foreign_cores": max(0.0, (process_stat.machine_busy_s() - self._machine_s - known_s) / wall_s),
        }


def wait_for_quiet() -> None:
    """Waits a little for other load to pass, but never long: a busy machine shows in the figures."""
    give_up_at = time.monotonic() + QUIET_PATIENCE_S
    while time.monotonic() < give_up_at:
        before = process_stat.machine_busy_s()
        time.sleep(QUIET_SAMPLE_S)
        if process_stat.machine_busy_s() - before < QUIET_CORES * QUIET_SAMPLE_S:
            return
