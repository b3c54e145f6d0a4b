"""Everything at once, at random, from a seed: producers, workers, and somebody who breaks things."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Self

import pytest

import penstock
from penstock import sync
from penstock.errors import PenstockError
from penstock.testing import FaultProxy
from tests.faults.checker import body
from tests.faults.conftest import STREAM, Scene
from tests.faults.waiting import PATIENCE_S
from tests.faults.worker_process import WorkerProcess

SEED = int(os.environ.get("PENSTOCK_CAMPAIGN_SEED", "20261115"))
SECONDS = float(os.environ.get("PENSTOCK_CAMPAIGN_SECONDS", "10"))
pytestmark = [pytest.mark.usefixtures("default_server"), pytest.mark.timeout(SECONDS + 120)]

LEASE_S = 2.0
CONFIG = {
    "min_idle_claim_ms": int(LEASE_S * 1000),
    "max_deliveries": 50,
    "batch_size": 20,
    "retry_initial_delay_ms": 50,
}
WORKERS = {
    "message": [{"half": "async"}, {"half": "sync"}, {"half": "async", "is_plain": True}],
    # A fatal error of a batch handler is one for the whole batch: here no message has one.
    "batch": [{"half": "async"}, {"half": "sync"}, {"half": "async", "config": {**CONFIG, "concurrency": 3}}],
}


class Producers:
    """Two producers, one of each half, in threads of their own."""

    def __init__(self, url: str, seed: int, fatal: float) -> None:
        self._url, self._seed, self._fatal = url, seed, fatal
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.published: list[str] = []
        self.fatal: set[int] = set()
        self.unknown: set[int] = set()
        self._threads = [
            threading.Thread(target=self._run_sync, daemon=True),
            threading.Thread(target=lambda: asyncio.run(self._run_async()), daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a producer still publishes"

    def _next(self, chance: random.Random) -> dict[str, object]:
        n, fate = next(self._numbers), chance.random()
        pad = "x" * chance.randrange(200)
        nap = ["sleep", chance.uniform(0, 0.02)]
        if fate < self._fatal:
            self.fatal.add(n)
            return body(n, nap, ["raise", "fatal"], pad=pad)
        return body(n, nap, ["raise", "error"], runs=1, pad=pad) if fate < 0.02 else body(n, nap, pad=pad)

    def _run_sync(self) -> None:
        chance = random.Random(self._seed)
        with sync.StreamClient.from_url(self._url, socket_timeout=3) as client:
            producer = sync.StreamProducer(client, STREAM)
            while not self._stop.wait(0.005):
                data = self._next(chance)
                try:
                    self.published.append(producer.push(data))
                except PenstockError:
                    self.unknown.add(data["n"])

    async def _run_async(self) -> None:
        chance = random.Random(self._seed + 1)
        async with penstock.StreamClient.from_url(self._url, socket_timeout=3) as client:
            producer = penstock.StreamProducer(client, STREAM)
            while not self._stop.is_set():
                some = [self._next(chance) for _ in range(chance.randrange(1, 6))]
                answers = await asyncio.gather(*map(producer.push, some), return_exceptions=True)
                for data, answer in zip(some, answers, strict=True):
                    if isinstance(answer, str):
                        self.published.append(answer)
                    else:
                        self.unknown.add(data["n"])
                await asyncio.sleep(0.01)  # its pace: it waits for nothing


class Nemesis:
    """Breaks one thing after the other, as the seed has it, and mends what it broke."""

    def __init__(self, scene: Scene, proxy: FaultProxy, seed: int, style: str) -> None:
        self._scene, self._proxy, self._style = scene, proxy, style
        self._chance = random.Random(seed + 2)
        self._frozen: list[tuple[float, WorkerProcess]] = []
        self.workers = [self._start(job) for job in WORKERS[style]]
        self.deeds: list[str] = []

    def _start(self, job: dict[str, object]) -> WorkerProcess:
        described = {"config": CONFIG, "style": self._style, **job}
        return self._scene.worker(url=self._proxy.url, client={"socket_timeout": 3}, **described)

    def run(self, seconds: float) -> None:
        """Does a deed every now and then until the time is over, and leaves everybody alive and well."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._chance.uniform(0.1, 0.5))  # a random moment: it waits for nothing
            self._thaw(time.monotonic())
            deed = self._chance.choice([self._kill, self._freeze, self._reset, self._pause, self._forget, self._lose])
            self.deeds.append(deed.__name__.strip("_"))
            deed()
        self._proxy.heal()
        self._thaw(float("inf"))

    def _thaw(self, now: float) -> None:
        for until, worker in self._frozen:
            if until <= now:
                worker.thaw()
        self._frozen = [(until, worker) for until, worker in self._frozen if until > now]

    def _kill(self) -> None:
        place = self._chance.randrange(len(self.workers))
        victim = self.workers[place]
        self._frozen = [(until, worker) for until, worker in self._frozen if worker is not victim]
        victim.kill()
        self.workers[place] = self._start(WORKERS[self._style][place])

    def _freeze(self) -> None:
        victim = self._chance.choice(self.workers)
        if all(worker is not victim for _, worker in self._frozen):
            victim.freeze()
            self._frozen.append((time.monotonic() + self._chance.uniform(0.2, 2.5 * LEASE_S), victim))

    def _reset(self) -> None:
        self._proxy.reset_all()

    def _pause(self) -> None:
        what = self._chance.choice(["WRITE", "ALL"])
        self._scene.raw.execute_command("CLIENT", "PAUSE", self._chance.randrange(50, 500), what)

    def _forget(self) -> None:
        self._scene.raw.script_flush()

    def _lose(self) -> None:
        command = self._chance.choice(["EVALSHA", "XREADGROUP", "XPENDING"])
        ending = self._chance.choice(["close", "reset", "black_hole"])
        self._proxy.drop_reply(command, self._chance.randrange(1, 20), ending=ending)


@pytest.mark.parametrize("style", WORKERS)
def test_nothing_is_lost_and_nothing_is_unexplained_whatever_breaks(
    style: str, scene: Scene, fault_proxy: FaultProxy, measured: Callable[[str, object], None]
) -> None:
    nemesis = Nemesis(scene, fault_proxy, SEED, style)
    with Producers(fault_proxy.url, SEED, 0.005 if style == "message" else 0) as producers:
        nemesis.run(SECONDS)
    ended_at = time.monotonic()
    scene.wait_until_quiet()
    recovered_s = time.monotonic() - ended_at

    found = scene.checker.check_conserved(producers.published, producers.unknown)
    scene.checker.check_handled(scene.workers, found)
    dead = {found.entries[entry_id] for entry_id in found.dead}
    repeated = scene.checker.check_starts(scene.workers, killed=nemesis.deeds.count("kill"))
    assert dead <= producers.fatal, "dead without a reason"
    assert producers.fatal & set(found.entries.values()) <= dead, "a fatal message was acknowledged"
    for worker in nemesis.workers:
        # One that was started at the very end may be asked to end before it listens for that.
        assert worker.stop() == 0 or not worker.said("began"), worker.story()
    scene.checker.check_quiet()
    measured("seed", SEED)
    measured("messages", len(found.entries))
    measured("deeds", len(nemesis.deeds))
    measured("run_more_than_once", repeated)
    measured("unknown_publishes", len(producers.unknown))
    measured("quiet_after_s", round(recovered_s, 2))
