"""The flag of the asyncio half, which threads and signal handlers raise."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.runtime.aio import Event


async def test_a_thread_that_raises_a_flag_wakes_who_waits() -> None:
    event = Event()
    waiting = asyncio.create_task(event.wait())
    await asyncio.sleep(0)  # lets the task begin to wait, which nothing tells
    threading.Thread(target=event.set_from_outside).start()
    assert await waiting
    assert event.is_set()


async def test_a_thread_leaves_the_event_of_asyncio_to_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set by a thread while a task begins to wait for it, that event wakes nobody.
    event, setters = Event(), list[threading.Thread]()
    really_set = event._event.set

    def note_who_sets() -> None:
        setters.append(threading.current_thread())
        really_set()

    monkeypatch.setattr(event._event, "set", note_who_sets)
    thread = threading.Thread(target=event.set_from_outside)
    thread.start()
    thread.join()
    assert await event.wait()
    assert setters == [threading.current_thread()]


async def test_a_flag_is_raised_before_anybody_waits_and_lowered_again() -> None:
    event = Event()
    event.set_from_outside()
    assert event.is_set()
    assert await event.wait()
    event.clear()
    assert not event.is_set()
    assert not await event.wait(0)


def test_a_flag_is_raised_though_the_loop_in_which_it_was_awaited_is_closed() -> None:
    event = Event()
    assert not asyncio.run(event.wait(0))
    event.set_from_outside()
    assert asyncio.run(event.wait())
