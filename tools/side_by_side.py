"""Lets two commits work on the same keys, each with what the other has written: streams, queues, tasks, the balancer.

    python tools/side_by_side.py COMMIT [OTHER]     COMMIT beside the files as they are now, or beside OTHER

Each step of a story is a process of its own with the code of one commit, and the dependencies of this environment. A
story is told twice, so that each commit does every step. Only the public API is used, and only what both commits have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 60
_WAIT_S = 2  # of what failed, for its next run: longer than the process in which it failed
_DEAD = 9  # the exit code of a process that dies in the middle of its work, as it should
Say = Callable[..., Any]


# --- what one process does, with the code of one commit ---------------------------------------------


def push(url: str, numbers: list[int]) -> list[str]:
    """Publishes each number once, whoever has published it before."""
    from penstock.sync import StreamClient, StreamProducer

    with StreamClient.from_url(url) as client:
        producer = StreamProducer(client, "orders")
        return [producer.push(n, dedup_key=str(n)) for n in numbers]


def consume(url: str, wanted: int, fails: list[int], dies: list[int]) -> list[list[int]]:
    """Handles messages until so many were handled or have failed; returns what was handled, and in which attempt."""
    from penstock.sync import ConsumerConfig, StreamClient, StreamConsumer, StreamMessage

    handled, failed = list[list[int]](), list[int]()

    def handle(message: StreamMessage) -> None:
        if message.data in dies:
            os._exit(_DEAD)
        if message.data in fails:
            failed.append(message.data)
            raise ValueError(message.data)
        handled.append([message.data, message.attempts])

    config = ConsumerConfig(
        group="workers",
        min_idle_claim_ms=500,
        retry_initial_delay_ms=_WAIT_S * 1_000,
        max_deliveries=3,
        block_ms=0,
        concurrency=1,
    )
    with StreamClient.from_url(url) as client:
        consumer = StreamConsumer(client, "orders", config, message_handler=handle)
        for _ in patiently(lambda: len(handled) + len(failed) >= wanted):
            consumer.run_once()
        consumer.close()
    return sorted(handled)


def redrive(url: str) -> list[Any]:
    """Puts all dead letters back; returns what they said."""
    from penstock.sync import DeadLetters, StreamClient

    with StreamClient.from_url(url) as client:
        letters = DeadLetters(client, "orders")
        said = [[letter.reason, letter.error_text, letter.attempts] for letter in letters.list()]
        letters.redrive()
        return said


def publish(url: str, texts: list[str]) -> list[bool]:
    """Publishes to a queue; returns for each text whether it was new."""
    from penstock.sync import RedisMessageQueue, StreamClient

    with StreamClient.from_url(url) as client:
        queue = RedisMessageQueue("parcels", client=client)
        return [bool(queue.publish(text)) for text in texts]


def process(url: str, wanted: int, fails: list[str], dies: list[str]) -> list[str]:
    """Processes messages of a queue until so many were processed or have failed."""
    from penstock.sync import RedisMessageQueue, StreamClient

    done, failed = list[str](), list[str]()
    with StreamClient.from_url(url) as client:
        queue = RedisMessageQueue("parcels", client=client, visibility_timeout_seconds=1, retry_delay_seconds=_WAIT_S)
        for _ in patiently(lambda: len(done) + len(failed) >= wanted):
            try:
                with queue.process_message() as message:
                    if message in dies:
                        os._exit(_DEAD)
                    if message in fails:
                        raise ValueError(message)
                    if message is not None:
                        done.append(str(message))
            except ValueError as error:
                failed.append(str(error))
    return sorted(done)


def enqueue(url: str, ids: list[str], delay: float | None) -> list[str]:
    """Adds tasks, each id once."""
    from penstock.sync.tasks import RedisTaskQueue
    from penstock.task import Task

    with RedisTaskQueue(url, "jobs") as queue:
        return queue.enqueue_many([Task(kind="render", id=name) for name in ids], delay=delay)


def work(url: str, wanted: int, gives_back: list[str], gives_up: list[str], dies: list[str]) -> list[str]:
    """Takes tasks until so many were taken; finishes those that are not given back or up."""
    from penstock.sync.tasks import RedisTaskQueue
    from penstock.task import Result

    done, taken = list[str](), list[str]()
    with RedisTaskQueue(url, "jobs", idle_ms=500) as queue:
        for _ in patiently(lambda: len(taken) >= wanted):
            queue.requeue_orphans()
            for task in queue.pop_many(1, timeout=0.1):
                taken.append(task.id)
                if task.id in dies:
                    os._exit(_DEAD)
                if task.id in gives_back:
                    queue.nack(task.id, delay=_WAIT_S)
                elif task.id in gives_up:
                    queue.dead_letter(task.id)
                else:
                    queue.finish_many([Result(task_id=task.id, kind=task.kind, data=task.id)])
                    done.append(task.id)
    return sorted(done)


def results(url: str, ids: list[str]) -> list[Any]:
    """Returns the results of tasks, and puts what is dead back."""
    from penstock.sync.tasks import RedisTaskQueue

    with RedisTaskQueue(url, "jobs") as queue:
        found = [queue.get_result(name) for name in ids]
        said = [None if each is None else [each.status, each.data] for each in found]
        return [said, [queue.dead.put_back(letter) for letter in list(queue.dead.iterate())], queue.pending_count()]


def add_stream(url: str, numbers: list[int]) -> None:
    """Adds a data stream to a service, with these numbers in it."""
    from penstock.sync import StreamBalancer, StreamClient, StreamProducer

    with StreamClient.from_url(url) as client:
        StreamProducer(client, "session").push_many(numbers)
        StreamBalancer(client, "svc", id=f"adds-{os.getpid()}").add_stream("session")


def own(url: str, wanted: int, dies: bool, finishes: bool) -> list[int]:
    """Owns the data stream for so many messages, commits them, and hands it over, finishes it or dies."""
    from penstock.sync import JsonSerializer, OwnedStream, StreamBalancer, StreamClient

    seen: list[int] = []
    with StreamClient.from_url(url) as client:
        balancer = StreamBalancer(client, "svc", id=f"owns-{os.getpid()}", recovery_interval_ms=500)

        def handle(stream: OwnedStream) -> None:
            for message in stream:
                stream.commit(message)
                seen.append(message.data)
                if len(seen) == wanted:
                    break
            if dies:
                sys.stdout.write(json.dumps(seen))
                sys.stdout.flush()
                os._exit(_DEAD)
            balancer.stop()
            if not finishes:
                raise RuntimeError("what fails is handed over")

        cut_off = threading.Timer(_PATIENCE_S, balancer.stop)
        cut_off.start()
        balancer.run(handle, serializer=JsonSerializer(), handle_signals=False)
        cut_off.cancel()
    return seen


def patiently(is_over: Callable[[], bool]) -> Iterator[None]:
    """Yields until it is over; raises TimeoutError if that takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_over():
        if time.monotonic() > deadline:
            raise TimeoutError
        yield
        time.sleep(0.01)


_ALL = (push, consume, redrive, publish, process, enqueue, work, results, add_stream, own)
STEPS: dict[str, Callable[..., Any]] = {step.__name__: step for step in _ALL}


# --- stories: `a` and `b` do a step with the code of one commit or the other -------------------------


def streams(a: Say, b: Say) -> None:
    """What one publishes, parks, gives up or dies with, the other reads, retries, redrives or takes over."""
    ids = a("push", numbers=[0, 1, 2, 3, 4])
    same("a duplicate is known", b("push", numbers=[0, 4]), [ids[0], ids[4]])
    same("handled", a("consume", wanted=5, fails=[0, 1], dies=[]), [[2, 1], [3, 1], [4, 1]])
    same("retried", b("consume", wanted=2, fails=[0], dies=[]), [[1, 2]])
    same("failed for the last time", a("consume", wanted=1, fails=[0], dies=[]), [])
    same("dead", b("redrive"), [["max_deliveries", "0", 3]])
    same("comes again", a("consume", wanted=1, fails=[], dies=[]), [[0, 1]])
    b("push", numbers=[5])
    a("consume", wanted=1, fails=[], dies=[5])
    same("taken over", b("consume", wanted=1, fails=[], dies=[]), [[5, 2]])


def queue(a: Say, b: Say) -> None:
    """The same for a queue."""
    same("published", a("publish", texts=["a", "b", "c"]), [True] * 3)
    same("a duplicate is known", b("publish", texts=["a", "d"]), [False, True])
    same("processed", b("process", wanted=2, fails=["a"], dies=[]), ["b"])
    a("process", wanted=1, fails=[], dies=["a", "c", "d"])
    same("taken over", b("process", wanted=3, fails=[], dies=[]), ["a", "c", "d"])


def tasks(a: Say, b: Say) -> None:
    """The same for tasks, with schedules and results."""
    a("enqueue", ids=["one", "two", "three"], delay=None)
    a("enqueue", ids=["later"], delay=0.3)
    b("enqueue", ids=["one"], delay=None)
    same("finished", b("work", wanted=3, gives_back=["one"], gives_up=["two"], dies=[]), ["three"])
    found = a("results", ids=["one", "three", "two"])
    same("results", found[0][:2], [None, ["ok", "three"]])
    same("dead", (found[0][2][0], found[1]), ("error", ["queued"]))
    b("work", wanted=1, gives_back=[], gives_up=[], dies=["one", "two", "later"])
    same("taken over", a("work", wanted=3, gives_back=[], gives_up=[], dies=[]), ["later", "one", "two"])
    same("nothing is left", b("results", ids=["one", "two"]), [[["ok", "one"], ["ok", "two"]], [], 0])


def balancer(a: Say, b: Say) -> None:
    """What one owns, commits and hands over or dies with, the other goes on with."""
    a("add_stream", numbers=[1, 2, 3, 4, 5, 6])
    same("owned", b("own", wanted=2, dies=False, finishes=False), [1, 2])
    same("handed over", a("own", wanted=2, dies=True, finishes=False), [3, 4])
    same("taken over", b("own", wanted=2, dies=False, finishes=True), [5, 6])


STORIES = (streams, queue, tasks, balancer)


def same(what: str, found: object, expected: object) -> None:
    """Raises AssertionError, with both, if something came otherwise."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r} instead of {expected!r}")


# --- the stage --------------------------------------------------------------------------------------


@contextmanager
def code_of(commit: str | None) -> Iterator[Path]:
    """Gives the folder with the packages of a commit; None = the files as they are now."""
    if commit is None:
        yield _ROOT / "src"
        return
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as folder:
        packed = subprocess.run(["git", "-C", _ROOT, "archive", commit, "src"], capture_output=True, check=True)  # noqa: S607
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)  # noqa: S607
        yield Path(folder) / "src"


def say_with(code: Path, url: str) -> Say:
    """Returns a function that does a step with the code in a folder."""

    def say(step: str, **arguments: Any) -> Any:
        command = [sys.executable, __file__, "--step", step, url, json.dumps(arguments)]
        environment = {**os.environ, "PYTHONPATH": str(code)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, _DEAD):
            raise AssertionError(f"{step} with {code}:\n{ended.stderr[-2_000:]}")
        return json.loads(ended.stdout or "null")

    return say


def main() -> int:
    """Tells every story in both directions on a server of its own."""
    if sys.argv[1:2] == ["--step"]:
        _, _, step, url, arguments = sys.argv
        sys.stdout.write(json.dumps(STEPS[step](url, **json.loads(arguments))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("other", nargs="?")
    given = parser.parse_args()
    from penstock.redis.embedded import EmbeddedServer

    failed = 0
    with code_of(given.commit) as first, code_of(given.other) as second:
        names = {first: given.commit, second: given.other or "now"}
        for story in STORIES:
            for a, b in ((first, second), (second, first)):
                title = f"{story.__name__}: {names[a]} begins, {names[b]} goes on"
                try:
                    with EmbeddedServer(port=0) as server:
                        story(say_with(a, server.url), say_with(b, server.url))
                    print(f"ok      {title}")
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED  {title}\n{error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
