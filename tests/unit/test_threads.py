"""What the sync half is built on: flags that signal handlers raise, threads that are joined by others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from penstock.runtime.threads import Flag, TaskGroup

SIGNALLED = """
import faulthandler, signal, time
from penstock.runtime.threads import Flag

faulthandler.dump_traceback_later(100, exit=True)
event, is_inside, heard = Flag(), False, 0

def handle(*_):
    global is_inside, heard
    if not is_inside:  # the next signal may strike in here, too
        is_inside = True
        event.set_from_outside()
        heard, is_inside = heard + 1, False

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while heard < 2_000:
    event.wait(0.00005)
    event.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
event.clear()
is_inside = False
signal.setitimer(signal.ITIMER_REAL, 0.01)
assert event.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_signal_handler_may_raise_a_flag_whatever_it_interrupts() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_raised_flag_wakes_all_who_wait_and_those_who_come_later() -> None:
    event, woken = Flag(), []
    waiting = [threading.Thread(target=lambda: woken.append(event.wait()), daemon=True) for _ in range(5)]
    for thread in waiting:
        thread.start()
    event.set()
    for thread in waiting:
        thread.join(30)
    assert woken == [True] * 5
    assert event.wait(0)
    assert event.is_set()


def test_a_flag_that_stays_down_is_waited_for_as_long_as_told() -> None:
    event = Flag()
    began = time.monotonic()
    assert not event.wait(0.05)
    assert time.monotonic() - began >= 0.05
    assert not event.wait(0)
    assert not event.wait(-1)
    event.set()
    event.clear()
    assert not event.is_set()
    assert not event.wait(0.01)


def test_no_wake_up_is_lost_between_threads() -> None:
    ping, pong = Flag(), Flag()

    def answer() -> None:
        for _ in range(5_000):
            assert ping.wait(30)
            ping.clear()
            pong.set()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for _ in range(5_000):
        ping.set()
        assert pong.wait(30)
        pong.clear()
    thread.join(30)
    assert not thread.is_alive()


SIGNALLED_ELSEWHERE = """
import faulthandler, os, signal, threading, time
from penstock.runtime.threads import Flag

faulthandler.dump_traceback_later(100, exit=True)
event = Flag()
signal.signal(signal.SIGTERM, lambda *_: event.set_from_outside())

def ask() -> None:  # as the system does when the main thread has not run since it was frozen
    while not event._waiting:
        time.sleep(0.001)  # nothing announces that the main thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=ask).start()
assert event.wait()
"""


def test_a_signal_that_another_thread_was_given_wakes_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", SIGNALLED_ELSEWHERE], check=True, timeout=120)


@pytest.mark.usefixtures("hasty_threads")
def test_a_group_of_threads_is_joined_while_others_start_in_it() -> None:
    activities = TaskGroup(lambda: None)

    def start_others() -> None:
        for _ in range(500):
            activities.start(lambda: None)

    starting = threading.Thread(target=start_others, daemon=True)
    starting.start()
    while starting.is_alive():
        activities.join(60)
    assert activities.join(60)
