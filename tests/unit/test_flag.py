"""The flag of the asyncio half, which threads and signal handlers raise."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.runtime.aio import Flag


async def test_a_thread_that_raises_a_flag_wakes_who_waits() -> None:
    flag = Flag()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)  # lets the task begin to wait, which nothing tells
    threading.Thread(target=flag.set_from_outside, daemon=True).start()
    assert await asyncio.wait_for(waiting, 60)
    assert flag.is_set()


async def test_a_thread_leaves_the_event_of_asyncio_to_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set by a thread while a task begins to wait for it, that flag wakes nobody.
    flag, setters = Flag(), list[threading.Thread]()
    really_set = flag._event.set

    def note_who_sets() -> None:
        setters.append(threading.current_thread())
        really_set()

    monkeypatch.setattr(flag._event, "set", note_who_sets)
    thread = threading.Thread(target=flag.set_from_outside, daemon=True)
    thread.start()
    thread.join(60)
    assert await flag.wait(60)
    assert setters == [threading.current_thread()]


async def test_a_flag_is_raised_before_anybody_waits_and_lowered_again() -> None:
    flag = Flag()
    flag.set_from_outside()
    assert flag.is_set()
    assert await flag.wait(60)
    flag.clear()
    assert not flag.is_set()
    assert not await flag.wait(0)


def test_a_flag_is_raised_though_the_loop_in_which_it_was_awaited_is_closed() -> None:
    flag = Flag()
    assert not asyncio.run(flag.wait(0))
    flag.set_from_outside()
    assert asyncio.run(flag.wait(60))
