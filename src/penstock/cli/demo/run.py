"""Runs the demo: producers publish, workers work, one is killed, another takes its place, and the books are read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from penstock import ConsumerGroup, ConsumerInfo, PenstockError, StreamClient, StreamProducer
from penstock.cli.demo import audit as demo_audit
from penstock.cli.demo.audit import Balance, Kill, Ledger
from penstock.cli.demo.orders import CONCURRENCY, GROUP, LEASE_MS, STREAM, WORKERS, Plan, Scrambler
from penstock.cli.demo.spark import SparkCount
from penstock.cli.demo.workers import DemoWorkers

_PRODUCERS = 2
_CHUNK = 100
_POLL_S = 0.05
_LIMIT_S = 45.0  # what is not done by then is counted as queued


class DemoOutput(Protocol):
    """Shows the progress of the demo."""

    def show(self, text: str) -> None:
        """Show what happened."""

    def progress(self, published: int, settled: int) -> None:
        """Show how far it is."""


@dataclass(frozen=True)
class DemoSummary:
    """What the demo found."""

    server: str
    seed: int
    balance: Balance
    dead_letters: dict[str, int]
    killed: str
    held: int
    handled_again: int
    recovery_s: float
    lease_s: float
    runs: int
    duplicates: int
    duplicates_by_the_kill: int
    work_ms: float
    at_a_time: int
    seconds: float
    per_second: float
    is_finished: bool
    spark: SparkCount | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing is lost, and Spark agrees."""
        return self.balance.holds and (self.spark is None or self.spark.agrees)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {"is_balanced": self.holds, **asdict(self)}


class DemoRun:
    """One run of the demo against a server that is up."""

    def __init__(self, client: StreamClient, workers: DemoWorkers, plan: Plan, output: DemoOutput) -> None:
        self._client, self._workers, self._plan, self._output = client, workers, plan, output
        self._group = ConsumerGroup(client, STREAM, GROUP)
        self._published: list[str] = []
        self._kill: Kill | None = None
        self._is_time_up = False

    async def run(self) -> DemoSummary:
        """Play it through; return what came of it."""
        server = await self._client.capabilities()
        self._output.show(f"{server.product} {server.version} is running; publishing {self._plan.messages:,} orders")
        await self._group.ensure()
        for number in range(1, WORKERS + 1):
            self._workers.start(_name(number))
        self._output.show(f"{' and '.join(self._workers.names)} started, one process each")
        await self._play()
        self._workers.stop()
        self._output.show("the workers have stopped; counting the results")
        books = await demo_audit.read_ledger(self._client)
        return self._summary(f"{server.product} {server.version}", books)

    async def _play(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for producer in range(_PRODUCERS):
                    tasks.create_task(self._publish(range(producer, self._plan.messages, _PRODUCERS)))
                tasks.create_task(self._watch())
        except ExceptionGroup as failures:
            # Whoever runs the demo wants the sentence, not the group that it came in.
            raise next((e for e in failures.exceptions if isinstance(e, PenstockError)), failures) from None

    async def _publish(self, numbers: range) -> None:
        producer = StreamProducer(self._client, STREAM, GROUP, max_len=None)
        broken = StreamProducer(self._client, STREAM, GROUP, max_len=None, serializer=Scrambler())
        for start in range(0, len(numbers), _CHUNK):
            if self._is_time_up:
                break
            chunk = numbers[start : start + _CHUNK]
            orders = [self._plan.order(number) for number in chunk if number != self._plan.scrambled]
            self._published += await producer.push_many(orders)
            if self._plan.scrambled in chunk:
                self._published.append(await broken.push(self._plan.order(self._plan.scrambled)))

    async def _watch(self) -> None:
        """Watch until everything is settled or the time is up; kill a worker meanwhile."""
        deadline = time.monotonic() + _LIMIT_S
        while not self._is_time_up:
            # In this order: what is published or handed out in between is not taken for settled.
            published = len(self._published)
            lag = await self._group.lag()
            consumers = await self._group.consumers()
            settled = max(0, published - lag.count - sum(consumer.pending for consumer in consumers))
            self._output.progress(published, settled)
            self._workers.check()
            if self._kill is None and settled >= self._plan.kill_after:
                await self._kill_one(consumers)
            if settled >= self._plan.messages:
                break
            await asyncio.sleep(_POLL_S)
            self._is_time_up = time.monotonic() > deadline

    async def _kill_one(self, consumers: list[ConsumerInfo]) -> None:
        killed_worker, replacement = _name(self._plan.killed_worker), _name(WORKERS + 1)
        if not any(consumer.name == killed_worker and consumer.pending for consumer in consumers):
            return  # its process is slow to start, and killing an idle one would show nothing
        killed_at_s = self._workers.kill(killed_worker)
        held = frozenset([entry_id async for entry_id in demo_audit.pending(self._client, killed_worker)])
        self._kill = Kill(killed_worker, killed_at_s, held)
        self._workers.start(replacement)
        self._output.show(f"{killed_worker} was killed while holding {len(held):,} orders; {replacement} replaces it")

    def _summary(self, server: str, books: Ledger) -> DemoSummary:
        kill = self._kill or Kill("", 0.0, frozenset())  # no worker, nothing held
        again, recovery_s = demo_audit.recovery(kill, books)
        seconds = demo_audit.seconds_of_work(books)
        return DemoSummary(
            server=server,
            seed=self._plan.seed,
            balance=demo_audit.balance(self._published, books),
            dead_letters=demo_audit.reasons(books),
            killed=kill.worker,
            held=len(kill.held),
            handled_again=again,
            recovery_s=round(recovery_s, 3),
            lease_s=LEASE_MS / 1000,
            runs=sum(map(len, books.runs.values())),
            duplicates=demo_audit.duplicates(books),
            duplicates_by_the_kill=demo_audit.duplicates_of(kill.worker, books),
            work_ms=round(self._plan.mean_work_ms, 1),
            at_a_time=WORKERS * CONCURRENCY,
            seconds=round(seconds, 3),
            per_second=round(len(books.runs) / seconds, 1) if seconds else 0.0,
            is_finished=not self._is_time_up,
        )


def _name(number: int) -> str:
    return f"worker-{number}"
