"""Signals, sent for real to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.threads import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

PRELUDE = """
import asyncio, os, signal, sys, threading
from penstock.shutdown import SignalWatch

def say(*words):
    # One write a line: parent and child, or two threads, never mix theirs.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def dispositions():
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
"""

ASYNC_WORKER = """
async def main():
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    unsubscribe = SignalWatch.subscribe(lambda: loop.call_soon_threadsafe(stopping.set))
    say("ready")
    await stopping.wait()
    say("stopping")
    await linger()
    unsubscribe()
    say("stopped")
"""
WORKERS = {
    "asyncio": ASYNC_WORKER + "asyncio.run(main())",
    "uvloop": ASYNC_WORKER + "import uvloop; uvloop.run(main())",
    "asyncio without a runner": ASYNC_WORKER + "asyncio.new_event_loop().run_until_complete(main())",
    "main thread": """
stopping = threading.Event()
unsubscribe = SignalWatch.subscribe(stopping.set)
say("ready")
stopping.wait()
say("stopping")
asyncio.run(linger())
unsubscribe()
say("stopped")
""",
    "worker thread": """
stopping = threading.Event()
unsubscribe = SignalWatch.subscribe(stopping.set)
def work():
    say("ready")
    stopping.wait()
    say("stopping")
    asyncio.run(linger())
thread = threading.Thread(target=work, daemon=True)
thread.start()
thread.join()
unsubscribe()
say("stopped")
""",
}
PROMPT = "async def linger(): pass\n"
SLOW = "async def linger(): await asyncio.Event().wait()\n"
BLOCKED = "async def linger(): threading.Event().wait()\n"

every_worker = pytest.mark.parametrize("worker", WORKERS)
both_signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Child:
    """A Python process that can be read line by line and signalled."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        text = self._process.stdout.readline().strip()
        if not text:
            raise AssertionError(f"the child ended: {self._process.communicate(timeout=60)[1]}")
        return text

    def send(self, number: signal.Signals) -> None:
        self._wait_until_it_sleeps()
        self._process.send_signal(number)

    def _wait_until_it_sleeps(self) -> None:
        """Wait until the main thread waits in the kernel, where a signal wakes it.

        A signal that comes in the moment before, when Python has looked for signals and not yet begun to wait, is
        noticed only with the next one: CPython's locks and selectors have that gap.
        """
        state = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/stat")
        eventually(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "S")

    def end(self) -> tuple[int, list[str], str]:
        output, errors = self._process.communicate(timeout=60)
        return self._process.returncode, output.splitlines(), errors

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


Start = Callable[[str], Child]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def start_child(script: str) -> Child:
        if "uvloop" in script:
            pytest.importorskip("uvloop")
        children.append(Child(script))
        return children[-1]

    yield start_child
    for child in children:
        child.kill()


def run(start: Start, script: str) -> list[str]:
    """Run a script that needs no signal from outside, and return what it says."""
    code, lines, errors = start(script).end()
    assert code == 0, errors
    return lines


@every_worker
@both_signals
def test_the_first_signal_stops_politely_even_when_all_wait(start: Start, worker: str, number: signal.Signals) -> None:
    child = start(PROMPT + WORKERS[worker])
    assert child.line() == "ready"
    child.send(number)
    assert child.end() == (0, ["stopping", "stopped"], "")


@every_worker
@pytest.mark.parametrize("pace", [SLOW, BLOCKED], ids=["slow", "blocked"])
@both_signals
def test_the_second_signal_ends_the_process(start: Start, worker: str, pace: str, number: signal.Signals) -> None:
    child = start(pace + WORKERS[worker])
    assert child.line() == "ready"
    child.send(number)
    assert child.line() == "stopping"
    child.send(number)
    code, lines, errors = child.end()
    assert (code, lines) == (-number, [])
    assert ("KeyboardInterrupt" in errors) == (number is signal.SIGINT)


def test_the_second_signal_need_not_be_the_same(start: Start) -> None:
    child = start(SLOW + WORKERS["asyncio"])
    assert child.line() == "ready"
    child.send(signal.SIGINT)
    assert child.line() == "stopping"
    child.send(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM


def test_every_subscriber_is_called_and_a_failing_one_disturbs_nobody(start: Start) -> None:
    lines = run(
        start,
        """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s: %(exc_info)s")
        SignalWatch.subscribe(lambda: say("one"))
        SignalWatch.subscribe(lambda: 1 / 0)
        SignalWatch.subscribe(lambda: say("three"))
        signal.raise_signal(signal.SIGTERM)
        """,
    )
    assert lines[0] == "one"
    assert lines[1].startswith(
        "penstock.shutdown: a subscriber to SIGTERM raised an error: (<class 'ZeroDivisionError'>"
    )
    assert lines[-1] == "three"


def test_who_subscribes_while_others_still_stop_is_called_at_once(start: Start) -> None:
    lines = run(
        start,
        """
        leave = SignalWatch.subscribe(lambda: say("first"))
        signal.raise_signal(signal.SIGTERM)
        leave_too = SignalWatch.subscribe(lambda: say("late"))
        leave(); leave_too()
        SignalWatch.subscribe(lambda: say("next round"))
        say("end")
        """,
    )
    assert lines == ["first", "late", "end"]


@pytest.mark.parametrize("foreign", ["lambda *_: say('mine')", "signal.SIG_IGN"])
def test_a_foreign_handler_is_left_alone(start: Start, foreign: str) -> None:
    lines = run(
        start,
        f"""
        signal.signal(signal.SIGTERM, {foreign})
        before = dispositions()
        leave = SignalWatch.subscribe(lambda: say("watched"))
        say([now is then for now, then in zip(dispositions(), before)])
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        leave()
        say([now is then for now, then in zip(dispositions(), before)])
        """,
    )
    assert [line for line in lines if line != "mine"] == ["[True, False]", "watched", "[True, True]"]
    assert ("mine" in lines) == ("mine" in foreign)


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_a_handler_of_the_event_loop_is_left_alone(start: Start, runner: str) -> None:
    lines = run(
        start,
        f"""
        import {runner}
        async def main():
            called = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, called.set)
            SignalWatch.subscribe(lambda: say("watched"))
            os.kill(os.getpid(), signal.SIGTERM)
            await called.wait()
            say("called")
        {runner}.run(main())
        """,
    )
    assert lines == ["called"]


def test_a_handler_that_is_installed_later_is_not_taken_away(start: Start) -> None:
    lines = run(
        start,
        """
        leave = SignalWatch.subscribe(lambda: say("watched"))
        signal.signal(signal.SIGTERM, lambda *_: say("mine"))
        leave()
        signal.raise_signal(signal.SIGTERM)
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        """,
    )
    assert lines == ["mine", "True"]


def test_the_last_subscriber_to_leave_restores_what_was_there(start: Start) -> None:
    lines = run(
        start,
        """
        before = dispositions()
        leave, leave_too = SignalWatch.subscribe(lambda: 0), SignalWatch.subscribe(lambda: 0)
        leave(); leave()
        say(dispositions() == before)
        leave_too()
        say(dispositions() == before)
        """,
    )
    assert lines == ["False", "True"]


def test_the_sigint_handler_of_asyncio_run_comes_back(start: Start) -> None:
    lines = run(
        start,
        """
        async def main():
            before = dispositions()
            leave = SignalWatch.subscribe(lambda: 0)
            say(dispositions()[1] is before[1])
            leave()
            say(dispositions()[1] is before[1])
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            say("interrupted")
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        """,
    )
    assert lines == ["False", "True", "interrupted", "True"]


def test_the_handler_of_a_finished_asyncio_run_does_not_come_back(start: Start) -> None:
    lines = run(
        start,
        """
        async def main():
            return SignalWatch.subscribe(lambda: 0)
        asyncio.run(main())()
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        """,
    )
    assert lines == ["True"]


def test_outside_of_the_main_thread_nothing_is_installed(start: Start) -> None:
    lines = run(
        start,
        """
        before = dispositions()
        thread = threading.Thread(target=lambda: SignalWatch.subscribe(lambda: say("called")))
        thread.start(); thread.join()
        say(dispositions() == before)
        SignalWatch.subscribe(lambda: say("called too"))
        signal.raise_signal(signal.SIGTERM)
        """,
    )
    assert lines == ["True", "called", "called too"]


@both_signals
def test_a_signal_after_the_last_left_in_another_thread_has_its_old_effect(
    start: Start, number: signal.Signals
) -> None:
    child = start(
        """
        leave = SignalWatch.subscribe(lambda: say("called"))
        thread = threading.Thread(target=leave)
        thread.start(); thread.join()
        say("ready")
        threading.Event().wait()
        """
    )
    assert child.line() == "ready"
    child.send(number)
    assert child.end()[:2] == (-number, [])


def test_a_forked_child_has_the_dispositions_from_before(start: Start) -> None:
    child = start(
        """
        before = dispositions()
        SignalWatch.subscribe(lambda: say("parent called"))
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            say("child", dispositions() == before)
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        say(child)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        signal.raise_signal(signal.SIGTERM)
        """
    )
    said = {child.line(), child.line()}
    assert "child True" in said
    os.kill(int(next(line for line in said if line.isdigit())), signal.SIGTERM)
    assert child.end()[:2] == (0, [str(-signal.SIGTERM), "parent called"])


def test_a_forked_child_may_subscribe_on_its_own(start: Start) -> None:
    lines = run(
        start,
        """
        SignalWatch.subscribe(lambda: say("parent called"))
        child = os.fork()
        if not child:
            SignalWatch.subscribe(lambda: say("child called"))
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        os.waitpid(child, 0)
        signal.raise_signal(signal.SIGTERM)
        """,
    )
    assert lines == ["child called", "parent called"]
