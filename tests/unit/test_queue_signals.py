"""GracefulInterruptHandler in real processes: the first signal asks, the second has the effect that it always has."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import Self

import pytest
import redis

import penstock.sync
from tests.helpers.threads import eventually

OPENING = """
import os, signal, sys, threading, time
from penstock import EventDrivenInterruptHandler, GracefulInterruptHandler
from penstock.errors import ConfigurationError

def say(*words):
    print(*words, flush=True)

def refused(make):
    try:
        make()
    except ConfigurationError as error:
        say("TypeError" if isinstance(error, TypeError) else "ValueError", error)
    else:
        say("accepted")

def wait_until(is_interrupted):
    while not is_interrupted():
        time.sleep(0.01)  # a handler of signals is asked: it has no event to wait for
"""

DEFAULT_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Child:
    """A Python process of the test's own."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OPENING + textwrap.dedent(code), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what else it said."""
        said, _ = self._process.communicate(timeout=100)
        return self._process.returncode, said.strip()


def run(code: str) -> list[str]:
    """Returns what a process says that ends by itself."""
    with Child(code) as child:
        returncode, said = child.end()
        assert returncode == 0, said
        return said.splitlines()


@pytest.mark.parametrize("number", DEFAULT_SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_is_noticed_and_the_process_goes_on(number: signal.Signals) -> None:
    with Child("""
        handler = GracefulInterruptHandler()
        say("ready", handler.is_interrupted())
        wait_until(handler.is_interrupted)
        say("noticed")
        sys.exit(7)
    """) as child:
        assert child.line() == "ready False"
        child.send(number)
        assert child.line() == "noticed"
        assert child.end() == (7, "")


@pytest.mark.parametrize("number", DEFAULT_SIGNALS, ids=lambda number: number.name)
def test_the_second_signal_has_its_usual_effect(number: signal.Signals) -> None:
    with Child("""
        handler = GracefulInterruptHandler(verbose=False)
        say("ready")
        wait_until(handler.is_interrupted)
        try:
            say("noticed")
            threading.Event().wait()
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
            raise
    """) as child:
        child.line()
        child.send(number)
        assert child.line() == "noticed"
        child.send(number)
        returncode, said = child.end()
    assert (returncode, said) == (-number, "KeyboardInterrupt" if number == signal.SIGINT else "")


def test_another_signal_than_the_first_ends_too() -> None:
    with Child("""
        handler = GracefulInterruptHandler()
        say("ready")
        wait_until(handler.is_interrupted)
        say("noticed")
        threading.Event().wait()
    """) as child:
        child.line()
        child.send(signal.SIGINT)
        assert child.line() == "noticed"
        child.send(signal.SIGTERM)
        assert child.end()[0] == -signal.SIGTERM


def test_one_handler_owns_a_signal() -> None:
    said = run("""
        first = GracefulInterruptHandler(signals=(signal.SIGTERM,))
        refused(lambda: GracefulInterruptHandler())
        say(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
        other = GracefulInterruptHandler(signals=(signal.SIGHUP,))
        first.release()
        say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        refused(lambda: GracefulInterruptHandler(signals=(signal.SIGTERM,)))
    """)
    assert said == [
        "ValueError another GracefulInterruptHandler already handles SIGTERM: share it, or call its release() first",
        "True",
        "True",
        "accepted",
    ]


def test_a_signal_that_has_a_handler_is_left_alone() -> None:
    said = run("""
        mine = lambda *_: say("mine")
        signal.signal(signal.SIGTERM, mine)
        refused(GracefulInterruptHandler)
        say(signal.getsignal(signal.SIGTERM) == mine, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)
    assert said[0].startswith("ValueError SIGTERM already has a handler")
    assert "EventDrivenInterruptHandler" in said[0]
    assert said[1] == "True True"


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    said = run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a program
        handler = GracefulInterruptHandler()
        signal.raise_signal(signal.SIGHUP)
        say(handler.is_interrupted(), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)
        say(handler.is_interrupted())
        handler.release()
        say(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
    """)
    assert said == ["False True", "True", "True"]


def test_it_is_made_before_asyncio_run_which_then_leaves_it_alone() -> None:
    said = run("""
        import asyncio

        async def inside():
            refused(GracefulInterruptHandler)

        asyncio.run(inside())
        handler = GracefulInterruptHandler()

        async def work():
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.to_thread(wait_until, handler.is_interrupted)
            say("noticed")

        asyncio.run(work())
    """)
    assert "before asyncio.run()" in said[0]
    assert said[1:] == ["noticed"]


def test_only_the_main_thread_may_make_one() -> None:
    said = run("""
        thread = threading.Thread(target=refused, args=(GracefulInterruptHandler,))
        thread.start()
        thread.join()
        say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """)
    assert said[0].startswith("ValueError GracefulInterruptHandler must be created in the main thread")
    assert said[1] == "True"


def test_wrong_signals_are_refused_and_none_is_taken() -> None:
    said = run("""
        for wrong in ((), set(), "SIGINT", 42, None, True, (4242,), ("SIGINT",), (signal.SIGTERM, signal.SIGKILL)):
            refused(lambda: GracefulInterruptHandler(signals=wrong))
        for wrong in (1, 0, "yes", None):
            refused(lambda: GracefulInterruptHandler(verbose=wrong))
        say(all(signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)))
    """)
    kinds = [line.partition(" ")[0] for line in said[:-1]]
    assert kinds == ["ValueError"] * 2 + ["TypeError"] * 6 + ["ValueError"] + ["TypeError"] * 4
    assert "must name at least one signal" in said[0]
    assert "such as (signal.SIGTERM,)" in said[2]
    assert "no process can catch SIGKILL" in said[8]
    assert "verbose=1 must be True or False" in said[9]
    assert said[-1] == "True"


def test_a_signal_may_be_given_by_its_number_and_twice() -> None:
    assert run("""
        handler = GracefulInterruptHandler(signals=[15, signal.SIGTERM, signal.SIGTERM])
        signal.raise_signal(signal.SIGTERM)
        say(handler.is_interrupted())
    """) == ["True"]


@pytest.mark.parametrize("ends", ["while the consumer runs", "after the consumer"])
def test_a_consumer_in_the_same_process_stops_on_the_same_signal(ends: str) -> None:
    with Child(
        """
        from penstock.shutdown import SignalWatch

        handler, stopping = GracefulInterruptHandler(verbose=False), threading.Event()
        unsubscribe = SignalWatch.subscribe(stopping.set)
        say("ready")
        wait_until(stopping.is_set)
        say("noticed", handler.is_interrupted())
        if sys.argv[1] == "after the consumer":
            unsubscribe()
            say("unsubscribed")
        threading.Event().wait()
        """,
        ends,
    ) as child:
        assert child.line() == "ready"
        child.send(signal.SIGTERM)
        assert child.line() == "noticed True"
        if ends == "after the consumer":
            assert child.line() == "unsubscribed"
        child.send(signal.SIGTERM)
        assert child.end() == (-signal.SIGTERM, "")


def test_a_handler_that_is_released_while_a_consumer_runs_has_no_effect() -> None:
    said = run("""
        from penstock.shutdown import SignalWatch

        handler, stopping = GracefulInterruptHandler(), threading.Event()
        unsubscribe = SignalWatch.subscribe(stopping.set)
        handler.release()
        signal.raise_signal(signal.SIGINT)
        say(stopping.is_set(), handler.is_interrupted())
        unsubscribe()
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
    """)
    assert said == ["True False", "KeyboardInterrupt"]


WORKER = """
import asyncio
import penstock, penstock.sync

url, half = sys.argv[1:]
handler = GracefulInterruptHandler(verbose=False)

def work_sync():
    with penstock.sync.StreamClient.from_url(url) as client:
        queue = penstock.sync.RedisMessageQueue("orders", client=client, interrupt=handler)
        while not handler.is_interrupted():
            with queue.process_message() as message:
                if message is not None:
                    say("began", message)
                    wait_until(handler.is_interrupted)
                    say("finished", message)
        say("drained", queue.drain())
        queue.close()

async def work():
    async with penstock.StreamClient.from_url(url) as client:
        queue = penstock.RedisMessageQueue("orders", client=client, interrupt=handler)
        while not handler.is_interrupted():
            async with queue.process_message() as message:
                if message is not None:
                    say("began", message)
                    await asyncio.to_thread(wait_until, handler.is_interrupted)
                    say("finished", message)
        say("drained", await queue.drain())
        await queue.close()

say("ready")
work_sync() if half == "sync" else asyncio.run(work())
"""


@pytest.mark.parametrize("half", ["async", "sync"])
@pytest.mark.usefixtures("default_server")
def test_a_worker_finishes_what_it_has_and_leaves_the_rest(half: str, redis_url: str, raw: redis.Redis) -> None:
    with penstock.sync.StreamClient.from_url(redis_url) as client:
        queue = penstock.sync.RedisMessageQueue("orders", client=client)
        for n in range(3):
            queue.publish(f"message {n}")
    with Child(WORKER, redis_url, half) as worker:
        assert [worker.line(), worker.line()] == ["ready", "began message 0"]
        worker.send(signal.SIGTERM)
        assert [worker.line(), worker.line()] == ["finished message 0", "drained True"]
        assert worker.end() == (0, "")
    assert [fields[b"data"] for _, fields in raw.xrange("orders")] == [b"message 1", b"message 2"]
    assert raw.xpending("orders", "queue")["pending"] == 0


@pytest.mark.parametrize("half", ["async", "sync"])
@pytest.mark.usefixtures("default_server")
def test_an_idle_worker_ends_without_waiting_for_messages(half: str, redis_url: str, raw: redis.Redis) -> None:
    with Child(WORKER, redis_url, half) as worker:
        assert worker.line() == "ready"
        eventually(lambda: raw.info("clients")["blocked_clients"] == 1)
        worker.send(signal.SIGINT)
        assert worker.line() == "drained True"
        assert worker.end() == (0, "")
