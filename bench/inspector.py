"""What the Inspector and the dashboard cost a server that has much on it: 1,000 streams, 10,000 consumers, 1,000,000
pending entries, 10,000 dead letters, 20,000 tasks, 100 more task queues, a balanced service of 100 streams, and a
message queue and a task queue with messages of a megabyte.

    python -m bench.inspector [--streams 1000] [--strict]

Prints for each call and page medians of five runs: how long it took, how much of its core the server spent on it, and
by the server's own slow log the slowest command or script. Elapsed time and the slow log measure by the clock, so other
processes make everything look slow. Where Linux says that the machine is busy, more runs are made; the five that waited
least for a core count, without what they waited. With --strict the exit code is 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from penstock.dashboard import create_app
from penstock.dashboard.server import DashboardServer
from penstock.errors import FatalError
from penstock.ops.model import TaskState
from penstock.redis.embedded import EmbeddedServer
from penstock.sync import ConsumerConfig, StreamBalancer, StreamClient, StreamConsumer, StreamMessage, StreamProducer
from penstock.sync.ops import Inspector, Sampler
from penstock.sync.tasks import RedisTaskQueue, Task

BIG = "big"  # one stream has half of everything
GROUP = "workers"
LETTERS, TASKS, SERVICE = "payments_dlq", "jobs", "telemetry"
VIDEOS, MAILS = "videos", "mails"  # whose tasks and messages are large
OVERVIEW_MS, PAGE_MS, COMMAND_MS, SAMPLER_SHARE = 500.0, 200.0, 10.0, 0.02
_RUNS, _MOST_RUNS = 5, 15
_QUIET = 0.05  # share of a run for which it may wait for a core
_SLOW_US, _MOST_SLOW = 500, 1_000  # commands that take longer are logged, and so many of them
_TURNS = itertools.count()
_MAIN_THREAD = {"used_cpu_sys_main_thread", "used_cpu_user_main_thread"}
_PAGES = (
    "/", "/streams", f"/stream?name={BIG}", f"/group?stream={BIG}&group={GROUP}", "/dead-letters",
    f"/dead-letters?stream={LETTERS}", "/queues", "/tasks", f"/tasks?queue={TASKS}",
    f"/tasks?queue={VIDEOS}&state=scheduled", "/workers", "/balancer", "/spark", "/retention", "/server", "/audit",
)  # fmt: skip
_EXAMINING = {"doctor", "page /server", "dead_letters.failures"}  # everything, like the overview, and compute with it
_FILL = """
for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'data', '{"order": ' .. i .. '}', 'message_id', i) end
"""


@dataclass(frozen=True)
class Run:
    """What a call cost once; `slow` has the longest time of each command that was slow, by what it begins with."""

    took_ms: float
    server_ms: float
    waited_ms: float  # for a core, which others had: server and client
    server_waited_ms: float
    slow: dict[str, float]

    def own_ms(self, command: str) -> float:
        """Return the longest time of a command, without its share of what the server waited; 0 = it was not slow."""
        ran_ms = max(self.server_ms, 0.1)  # the server's own count has coarse steps
        return self.slow.get(command, 0.0) * ran_ms / (ran_ms + self.server_waited_ms)


@dataclass(frozen=True)
class Cost:
    """What one call costs."""

    name: str
    limit_ms: float  # of the server's time
    took_limit_ms: float
    runs: list[Run]

    @property
    def took_ms(self) -> float:
        """How long it takes on a machine that is not busy."""
        return median(max(0.0, run.took_ms - run.waited_ms) for run in self.runs)

    @property
    def server_ms(self) -> float:
        """How much of its core the server spends."""
        return median(run.server_ms for run in self.runs)

    @property
    def slowest(self) -> tuple[float, str]:
        """The command with the greatest median of its longest times; in a run whose log does not have it, that is 0."""
        commands = {command for run in self.runs for command in run.slow}
        times = {command: median(run.own_ms(command) for run in self.runs) for command in commands}
        return max(((ms, command) for command, ms in times.items()), default=(0.0, ""))

    @property
    def worst_ms(self) -> float:
        """The longest time of any command in any run, with what the server waited."""
        return max((ms for run in self.runs for ms in run.slow.values()), default=0.0)

    @property
    def waited_ms(self) -> float:
        """How long server and client waited for a core in the run in which that was longest."""
        return max(run.waited_ms for run in self.runs)

    @property
    def is_within(self) -> bool:
        """Whether no limit is exceeded."""
        is_quick = self.server_ms <= self.limit_ms and self.took_ms <= self.took_limit_ms
        return is_quick and self.slowest[0] <= COMMAND_MS


class Scale:
    """A server with much on it."""

    def __init__(self, client: StreamClient, pid: int, streams: int) -> None:
        self.client, self._streams = client, streams
        self._schedule = Path(f"/proc/{pid}/schedstat")

    def fill(self) -> None:
        """Put half of the entries and a tenth of the consumers into one stream, the rest into all others."""
        self._fill(BIG, 500 * self._streams, self._streams)
        for n in range(self._streams - 1):
            self._fill(f"stream-{n:04}", 501, 9)
        for n in range(0, self._streams, 10):  # some have been trimmed, some have a backlog
            self.client.call("", "XTRIM", f"stream-{n:04}", "MAXLEN", 400)
            self.client.call("", "EVAL", _FILL, 1, f"stream-{n + 1:04}", 300)

        self._dead_letters(10 * self._streams)
        self._tasks(20 * self._streams)
        self._service(self._streams // 10)
        self._large(self._streams // 20)

    def _dead_letters(self, count: int) -> None:
        producer = StreamProducer(self.client, "payments", max_len=2 * count)
        producer.push_many([{"order": n} for n in range(count)])
        config = ConsumerConfig(group=GROUP, batch_size=1_000, block_ms=10)
        consumer = StreamConsumer(self.client, "payments", config, message_handler=_refuse)
        while self.client.call("", "XLEN", LETTERS) < count:
            consumer.run_once()
        consumer.close()

    def _tasks(self, count: int) -> None:
        with RedisTaskQueue(self.client, TASKS) as queue:
            for start in range(0, count, 1_000):
                queue.enqueue_many([Task(kind=f"kind-{n % 20}") for n in range(start, min(count, start + 1_000))])
            for _ in range(count // 100):
                task = queue.pop()
                if task is not None:
                    queue.ack(task.id)
        for n in range(self._streams // 10):
            with RedisTaskQueue(self.client, f"{TASKS}-{n:03}") as queue:
                queue.enqueue_many([Task(kind="render", id=f"render-{m}") for m in range(20)])
                queue.pop()

    def _large(self, count: int) -> None:
        body = "x" * 1_000_000
        with RedisTaskQueue(self.client, VIDEOS) as queue:
            for n in range(count):
                queue.enqueue(Task(kind="cut", id=f"running-{n}", payload={"video": body}))
                queue.pop()
            for n in range(count):
                queue.enqueue(Task(kind="cut", id=f"cron.video-{n}.1", payload={"video": body}), delay=86_400)
        self.client.call("", "XGROUP", "CREATE", MAILS, "queue", "0", "MKSTREAM")
        for _ in range(count):
            self.client.call("", "XADD", f"{MAILS}::completed", "*", "data", body)

    def _service(self, streams: int) -> None:
        # No consumer runs: its heartbeats would be charged to what is measured.
        client, balancer = self.client, StreamBalancer(self.client, SERVICE, id="reader-1")
        load, group = f"{SERVICE}-input", f"{SERVICE}-group"
        client.call("", "XGROUP", "CREATE", load, group, "0", "MKSTREAM")
        for n in range(streams):
            client.call("", "XADD", f"device-{n:04}", "*", "data", "{}")
            balancer.add_stream(f"device-{n:04}")
        client.call("", "XREADGROUP", "GROUP", group, "reader-1", "COUNT", streams // 2, "STREAMS", load, ">")

    def _fill(self, stream: str, entries: int, consumers: int) -> None:
        client = self.client
        for start in range(0, entries, 10_000):
            client.call("", "EVAL", _FILL, 1, stream, min(10_000, entries - start))
        client.call("", "XGROUP", "CREATE", stream, GROUP, "0")
        connection, share = client.connection(""), entries // consumers
        for n in range(consumers):
            command = ("XREADGROUP", "GROUP", GROUP, f"consumer-{n}", "COUNT", share + 1, "STREAMS", stream, ">")
            connection.pipeline([command])

    def cost(self, name: str, call: Callable[[], object], limit_ms: float = PAGE_MS) -> Cost:
        """Make a call once to load its scripts, then some times, and return what it costs."""
        took_limit_ms = OVERVIEW_MS if name in _EXAMINING else limit_ms
        call()
        runs = [self._run(call) for _ in range(_RUNS)]
        while len(runs) < _MOST_RUNS and sum(run.waited_ms <= _QUIET * run.took_ms for run in runs) < _RUNS:
            runs.append(self._run(call))
        return Cost(name, limit_ms, took_limit_ms, sorted(runs, key=lambda run: run.waited_ms / run.took_ms)[:_RUNS])

    def _run(self, call: Callable[[], object]) -> Run:
        self.client.call("", "SLOWLOG", "RESET")
        busy_s, before, began_s = self._busy_s(), self._waited_ms(), time.perf_counter()
        call()
        took_ms = (time.perf_counter() - began_s) * 1000
        server_ms, after = (self._busy_s() - busy_s) * 1000, self._waited_ms()
        slow: dict[str, float] = defaultdict(float)
        for entry in self.client.call("", "SLOWLOG", "GET", _MOST_SLOW):
            slow[_shown(entry[3])] = max(slow[_shown(entry[3])], entry[2] / 1000)
        of_server, of_client = (max(0.0, now - then) for now, then in zip(after, before, strict=True))
        return Run(took_ms, server_ms, of_server + of_client, of_server, dict(slow))

    def _waited_ms(self) -> tuple[float, float]:
        """Return for how long the server's main thread, and the threads of this process, had no core to run on."""
        return _waited_ms([self._schedule]), _waited_ms(Path("/proc/self/task").glob("*/schedstat"))

    def _busy_s(self) -> float:
        # Of the server's main thread: what other processes take from it in the meantime does not count.
        lines = self.client.call("", "INFO", "cpu").decode().splitlines()
        numbers = dict(line.split(":", 1) for line in lines if ":" in line)
        return sum(float(numbers[name]) for name in _MAIN_THREAD)


def _waited_ms(schedules: Iterable[Path]) -> float:
    return sum(int(each.read_text().split()[1]) for each in schedules if each.exists()) / 1e6


def _refuse(message: StreamMessage) -> None:
    raise FatalError(f"order {message.data['order']} has no address")


def _shown(command: list[bytes]) -> str:
    # Of a script its hash, and the first key; what follows may differ from run to run.
    return " ".join(word.decode(errors="replace")[:24] for word in command[:4])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=1_000, help="how many; with 1,000 entries each")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is exceeded")
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # every dead letter is an error
    server = EmbeddedServer()
    server.start()
    try:
        with StreamClient.from_url(server.unix_url, socket_timeout=300) as client:
            return measure(Scale(client, server.pid, options.streams), server.unix_url, is_strict=options.strict)
    finally:
        server.stop()


def _load(browser: httpx.Client, path: str) -> None:
    # Browsers with the same address share the values of a page for a moment: each run asks for another one.
    url = httpx.URL(path)
    browser.get(url.copy_merge_params({"turn": str(next(_TURNS))})).raise_for_status()


@contextmanager
def dashboard(url: str) -> Iterator[httpx.Client]:
    """Serve the dashboard; it samples once, so that a page is charged with no more than its own questions."""
    addresses: queue.Queue[str] = queue.Queue()
    server = DashboardServer(create_app(url, sample_interval_s=86_400.0), "127.0.0.1", 0, addresses.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=addresses.get(timeout=60), timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def measure(scale: Scale, url: str, *, is_strict: bool) -> int:
    """Fill the server, print what calls cost, and return the exit code."""
    client, began_s = scale.client, time.perf_counter()
    scale.fill()
    inspector = Inspector(client, names_max_age_s=60)
    totals = inspector.overview().totals
    print(
        f"{totals.streams:,} streams, {totals.consumers:,} consumers, {totals.pending:,} pending entries; filled in "
        f"{time.perf_counter() - began_s:.0f} s\n"
    )
    client.call("", "CONFIG", "SET", "slowlog-log-slower-than", _SLOW_US)
    client.call("", "CONFIG", "SET", "slowlog-max-len", _MOST_SLOW)
    costs = [
        scale.cost("overview", inspector.overview, OVERVIEW_MS),
        scale.cost("find the names", Inspector(client).streams.names),
        scale.cost("streams.page", inspector.streams.page),
        scale.cost("streams.info", lambda: inspector.streams.info(BIG)),
        scale.cost("streams.entries", lambda: inspector.streams.entries(BIG)),
        scale.cost("streams.entries, text", lambda: inspector.streams.entries(BIG, text="nowhere")),
        scale.cost("groups.lag", lambda: inspector.groups.lag(BIG, GROUP)),
        scale.cost("groups.lags", inspector.groups.lags, OVERVIEW_MS),
        scale.cost("groups.consumers", lambda: inspector.groups.consumers(BIG, GROUP)),
        scale.cost("pending.page", lambda: inspector.pending.page(BIG, GROUP)),
        scale.cost("pending.page, idle", lambda: inspector.pending.page(BIG, GROUP, min_idle_ms=10**9)),
        scale.cost("pending.page, consumer", lambda: inspector.pending.page(BIG, GROUP, consumer="consumer-7")),
        scale.cost("workers.page", inspector.workers.page),
        scale.cost("dead_letters.streams", inspector.dead_letters.streams),
        scale.cost("dead_letters.page", lambda: inspector.dead_letters.page(LETTERS)),
        scale.cost("dead_letters.failures", lambda: inspector.dead_letters.failures(LETTERS)),
        scale.cost("tasks.info", lambda: inspector.tasks.info(TASKS)),
        scale.cost("tasks.tasks", lambda: inspector.tasks.tasks(TASKS)),
        scale.cost("tasks.begin_with", lambda: inspector.tasks.begin_with(TASKS, "nothing")),
        scale.cost("tasks.tasks, large, running", lambda: inspector.tasks.tasks(VIDEOS, TaskState.RUNNING)),
        scale.cost("tasks.tasks, large, scheduled", lambda: inspector.tasks.tasks(VIDEOS, TaskState.SCHEDULED)),
        scale.cost("schedules.of, large", lambda: inspector.schedules.of(VIDEOS)),
        scale.cost("queues.peek, 10 large ones", lambda: inspector.queues.peek(MAILS, source="completed")),
        scale.cost("services.all", inspector.services.all),
        scale.cost("services.streams", lambda: inspector.services.streams(SERVICE)),
        scale.cost("retention.page", inspector.retention.page),
        scale.cost("retention.report", lambda: inspector.retention.report(BIG)),
        scale.cost("doctor", inspector.doctor),
    ]
    entry, letter = inspector.streams.entries(BIG, limit=1).items[0], inspector.dead_letters.page(LETTERS).items[0]
    details = (
        f"/entry?stream={BIG}&id={entry.id}", f"/dead-letter?stream={LETTERS}&id={letter.id}",
        f"/task?queue={TASKS}-000&id=render-7",
    )  # fmt: skip
    with dashboard(url) as browser:
        costs += [
            scale.cost(f"page {path.partition('&id')[0]}", lambda path=path: _load(browser, path))
            for path in (*_PAGES, *details)
        ]
    titles = f"{'call':36}{'took ms':>10}{'server ms':>11}{'slowest ms':>12}{'worst ms':>10}{'waited ms':>11}"
    print(f"{titles}   slowest command")
    for cost in costs:
        (slowest_ms, command), mark = cost.slowest, "" if cost.is_within else "   <- too much"
        print(
            f"{cost.name:36}{cost.took_ms:10.1f}{cost.server_ms:11.1f}{slowest_ms:12.2f}{cost.worst_ms:10.2f}"
            f"{cost.waited_ms:11.1f}   {command}{mark}"
        )
    print("\ntook, slowest: medians, without what was waited for a core; worst: the longest of any; waited: at most")
    share = sampler_share(scale, inspector)
    print(f"\na Sampler takes {100 * share:.2f} % of a core of the server")
    is_within = all(cost.is_within for cost in costs) and share <= SAMPLER_SHARE
    return 0 if is_within or not is_strict else 1


def sampler_share(scale: Scale, inspector: Inspector, seconds: float = 20.0) -> float:
    """Return which part of the server's main thread a Sampler with its usual interval takes."""
    [before] = inspector.servers.all()
    began_s = time.perf_counter()
    with Sampler(inspector):
        time.sleep(seconds)
    [after] = inspector.servers.all()
    return (after.cpu_s - before.cpu_s) / (time.perf_counter() - began_s)


if __name__ == "__main__":
    sys.exit(main())
