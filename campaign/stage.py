"""One scenario on its stage: processes that are kept alive, faults at random moments, the drain, the verdict."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from campaign.checker import State, Verdict, judge
from campaign.children import Child
from campaign.journal import FAULTS_FILE, HELD_FILE, NO_FAULTS, InFlight, Window
from campaign.machine import MachineWatch
from campaign.recovery import Bounds
from penstock.redis.embedded import EmbeddedServer
from penstock.testing import FaultProxy
from penstock.testing.faults import Fault as ArmedFault

CUT_OFF = 0.7
"""Leases: who is away for longer may lose one. The heartbeat renews it after a quarter."""
_POLL_S = 0.05
_DRAIN_PATIENCE_S = 45.0
_PROGRESS_S = 5.0


class Stage:
    """What a scenario plays on. Everything that it starts ends with `close()`."""

    lease_s = 6.0
    socket_timeout_s = 1.0

    def __init__(
        self, name: str, folder: Path, seed: int, messages: int, seconds: float, durability: str = ""
    ) -> None:  # fmt: skip
        self.name, self.folder, self.messages, self.seconds = name, folder, messages, seconds
        self.durability = durability  # "" = that of the scenario
        self.chance = random.Random(f"{seed} {name}")
        self.seed = seed
        self.resources = ExitStack()
        self.workers: list[Child] = []
        self.producers: list[Child] = []
        self.armed: list[tuple[str, ArmedFault]] = []
        self.faults = 0
        self.crashes: list[str] = []
        self.server: EmbeddedServer | None = None
        self.proxy: FaultProxy | None = None
        self.url = ""
        self.stream = "orders"
        self.extra: dict[str, Any] = {}  # what else a fault or a verdict of this scenario needs
        self.bounds = Bounds()
        self.holding: Callable[[Child], set[str]] | None = None
        """Returns what a worker has in hand."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._began = self._told = self._turn = time.monotonic()
        self._started = 0
        self._raw: Callable[[], Any] = self._plain
        folder.mkdir(parents=True, exist_ok=True)
        watch = MachineWatch(lambda begin, end: self.note("busy", "*", begin, end))
        watch.start()
        self.resources.callback(watch.close)

    # --- what runs ----------------------------------------------------------------------------------

    def serve(self, server: EmbeddedServer, *, through_proxy: bool = False) -> None:
        """Start the server of the scenario, and perhaps a proxy in front of it."""
        self.server = self.resources.enter_context(server)
        self.url = server.unix_url
        if through_proxy:
            self.proxy = self.resources.enter_context(FaultProxy(server.unix_socket))
            self.url = self.proxy.url

    def look_through(self, raw: Callable[[], Any]) -> None:
        """Look at the truth through these clients: of a cluster, or of whichever server is the master."""
        self._raw = raw

    @property
    def raw(self) -> Any:
        """A plain client, past the proxy."""
        return self._raw()

    def _plain(self) -> Any:
        assert self.server is not None
        if "client" not in self.extra:
            self.extra["client"] = redis.Redis(unix_socket_path=self.server.unix_socket, protocol=2)
            self.resources.callback(self.extra["client"].close)
        return self.extra["client"]

    @property
    def _client(self) -> dict[str, float]:
        # Connecting, too: whoever connects to a mute server is cut off for as long as that may take.
        return {"socket_timeout": self.socket_timeout_s, "socket_connect_timeout": self.socket_timeout_s}

    def worker(self, part: str, half: str = "async", **job: Any) -> Child:
        """Start a worker process; one that ends is followed by another."""
        return self._worker({"part": part, "half": half, **job})

    def _worker(self, job: dict[str, Any]) -> Child:
        described = {
            "url": self.url, "stream": self.stream, "lease_s": self.lease_s, "client": self._client,
            "id": f"w{self._started}", **job,
        }  # fmt: skip
        module = described.pop("module", "campaign.worker")
        child = Child(f"worker-{self._started}", module, {**described, "module": module}, self.folder)
        self._started += 1
        self.workers.append(child)
        return child

    def publish(self, part: str, *halves: str, **job: Any) -> None:
        """Start producers that share the messages, at a pace that takes two thirds of the time."""
        pace = max(1.0, self.messages / len(halves) / (self.seconds * 2 / 3))
        for number, half in enumerate(halves):
            described = {
                "part": part, "half": half, "url": self.url, "stream": self.stream, "first": number,
                "step": len(halves), "messages": self.messages, "pace": pace, "seed": f"{self.seed} {number}",
                "client": self._client, **job,
            }  # fmt: skip
            if self.durability:
                described["durability"] = self.durability
            self.producers.append(Child(f"producer-{number}", "campaign.producer", described, self.folder))

    def live(self) -> list[Child]:
        """Return the workers that run, are not frozen, and have started: killing others breaks nothing."""
        running = [child for child in self.workers if child.is_alive and not child.is_frozen]
        return [child for child in running if child.is_at_work]

    # --- faults -------------------------------------------------------------------------------------

    def note(
        self, kind: str, target: str = "*", begin: float | None = None, end: float | None = None,
        explains: str = "none", restored: float = 0.0,
    ) -> None:  # fmt: skip
        """Write a fault into the journal of faults."""
        now = time.time()
        window = Window(kind, target, begin or now, end or begin or now, explains, restored)
        with (self.folder / FAULTS_FILE).open("a") as file:
            file.write(json.dumps(asdict(window)) + "\n")
        self.faults += kind not in NO_FAULTS

    def note_held(self, child: Child) -> None:
        """Write down what a worker has in hand that was hit: that is what must come to another."""
        if self.holding is None:
            return
        try:
            held = InFlight(child.name, time.time(), sorted(self.holding(child)))
        except redis.RedisError:
            return  # no stream yet
        with (self.folder / HELD_FILE).open("a") as file:
            file.write(json.dumps(asdict(held)) + "\n")

    def note_outage(self, kind: str, begin: float, target: str = "*", lasting_s: float = 0.0) -> None:
        """Note that somebody was cut off from `begin` to now: that explains something if it took most of a lease."""
        end = time.time() + lasting_s
        self.note(kind, target, begin, end, "all" if end - begin > CUT_OFF * self.lease_s else "none")

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a time, and at the end of the faults at the latest."""
        self._later.append((time.monotonic() + seconds, action))

    # --- the play -----------------------------------------------------------------------------------

    def play(self, faults: list[Callable[[Stage], None]], pause_s: tuple[float, float] = (0.3, 1.5)) -> None:
        """Break one thing after the other until all messages are published, in double the time at most."""
        self.play_for(2 * self.seconds, faults, pause_s, lambda: any(child.is_alive for child in self.producers))
        self.finish_publishing()

    def finish_publishing(self) -> None:
        """Have the producers end after what they are publishing now."""
        deadline = time.monotonic() + _DRAIN_PATIENCE_S
        for child in self.producers:
            child.end(signal.SIGTERM)
        while any(child.is_alive for child in self.producers) and time.monotonic() < deadline:
            self.tick()
            time.sleep(_POLL_S)

    def play_for(
        self,
        seconds: float,
        faults: list[Callable[[Stage], None]],
        pause_s: tuple[float, float],
        is_going: Callable[[], bool] = lambda: True,
    ) -> None:
        """Break one thing after the other for so long, then mend all of it."""
        end, next_fault = self._began + seconds, time.monotonic() + 2.0
        while time.monotonic() < end and is_going():
            self.tick()
            if time.monotonic() > next_fault:
                self.chance.choice(faults)(self)
                next_fault = time.monotonic() + self.chance.uniform(*pause_s)
            time.sleep(_POLL_S)
        self.heal()

    def heal(self) -> None:
        """End every fault that holds."""
        due, self._later = self._later, []
        for _, action in due:
            action()
        if self.proxy is not None:
            self.proxy.heal()

    def drain(self, is_quiet: Callable[[], bool]) -> bool:
        """Wait until nothing is left, for as long as workers still get on; return whether that came true."""
        journals, seen, deadline = self.folder, -1, 0.0
        while not self._ask(is_quiet):
            size = sum(path.stat().st_size for path in journals.glob("worker*.journal"))
            if size != seen:
                seen, deadline = size, time.monotonic() + max(_DRAIN_PATIENCE_S, 4 * self.lease_s)
            if time.monotonic() > deadline:
                return False
            self.tick()
            time.sleep(_POLL_S)
        return True

    @staticmethod
    def _ask(question: Callable[[], bool]) -> bool:
        try:
            return question()
        except redis.RedisError:
            return False  # the server is still on its way

    def tick(self) -> None:
        """Do what is due, replace workers that have ended, and say how it goes."""
        now = time.monotonic()
        if now - self._turn > self.lease_s / 3:
            stalled = now - self._turn
            # Not a fault of ours and no defect: the whole machine stood still, and the workers with it.
            self.note("stall", "*", time.time() - stalled, time.time(), "all")
        for at, action in list(self._later):
            if at <= now:
                self._later.remove((at, action))
                action()
        for kind, fault in list(self.armed):
            if fault.has_happened:
                self.armed.remove((kind, fault))
                self.note(kind)
        for child in [child for child in self.workers if not child.is_alive]:
            self._replace(child)
        self._revive_server()
        if now - self._told > _PROGRESS_S:
            self._told = now
            self._say()
        self._turn = time.monotonic()

    def _revive_server(self) -> None:
        if self.server is not None and not self.server.is_running:
            log = self.folder / "server.log"
            text = log.read_text(errors="replace") if log.exists() else ""
            told = text.partition("BUG REPORT START")[2][:800] or text[-800:]  # a panic ends with pages of figures
            self.crashes.append(f"the server ended by itself: {told}")
            self.server.start()

    def _replace(self, child: Child) -> None:
        self.workers.remove(child)
        # A message may order the death of its worker; the journal has that.
        if not child.is_expected_to_end and child.code == -signal.SIGKILL:
            self.note_held(child)
        elif not child.is_expected_to_end:
            self.crashes.append(f"{child.name} ended by itself with {child.code}: {child.last_words()}")
            self.note("crash", child.name, explains="unended")
        if len(self.crashes) < 20:
            job = dict(child.job)
            job.pop("id", None)
            self._worker(job)

    def _say(self) -> None:
        published = sum(_lines(child.log.with_suffix(".journal")) for child in self.producers)
        handled = sum(_lines(path) for path in self.folder.glob("worker*.journal")) // 2
        spent = time.monotonic() - self._began
        print(
            f"  {self.name:16} {spent:4.0f} s  {published:7,} published  about {handled:7,} handled  "
            f"{self.faults:4} faults",
            flush=True,
        )

    def verdict(self, state: Callable[[], State]) -> Verdict:
        """Stop the workers and judge."""
        self._stop_workers()
        self._revive_server()
        return judge(self.folder, state(), self.crashes, self.bounds)

    def _stop_workers(self) -> None:
        for child in self.workers:
            child.end(signal.SIGTERM)
        for child in self.workers:
            if not child.wait():
                self.crashes.append(f"{child.name} does not end after SIGTERM: {child.last_words()}")

    def close(self) -> None:
        """End everything that was started."""
        for child in [*self.workers, *self.producers]:
            child.thaw()
            child.close()
        self.resources.close()


def _lines(path: Path) -> int:
    """Return about how many lines a journal has."""
    return path.stat().st_size // 28 if path.exists() else 0
