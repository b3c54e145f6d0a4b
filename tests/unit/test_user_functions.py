"""Plain functions run in threads, a bounded number at a time; those that hang hold up no others."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from penstock.runtime.user_functions import Threads
from tests.helpers.aio import DEADLINE_S, eventually, wait_for


async def give_up(call: asyncio.Task[object]) -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def test_a_function_that_hangs_holds_up_no_other_once_its_caller_has_left() -> None:
    threads, has_begun, may_end = Threads(1), threading.Event(), threading.Event()

    def hang() -> None:
        has_begun.set()
        may_end.wait(DEADLINE_S)

    before = set(threading.enumerate())
    hung = asyncio.ensure_future(threads.run(hang))
    await eventually(has_begun.is_set)
    await give_up(hung)
    async with asyncio.timeout(DEADLINE_S):
        assert await threads.run(lambda: 1) == 1
    may_end.set()
    await eventually(lambda: len(set(threading.enumerate()) - before) == 1)


async def test_when_ten_times_as_many_hang_as_may_run_the_others_wait_for_one_that_ends() -> None:
    threads, begun, may_end = Threads(1), list[int](), [threading.Event() for _ in range(11)]

    def hang(number: int) -> None:
        begun.append(number)
        may_end[number].wait(DEADLINE_S)

    for number in range(11):
        hung = asyncio.ensure_future(threads.run(hang, number))
        await eventually(lambda number=number: begun == list(range(number + 1)))  # type: ignore[misc]
        await give_up(hung)
    waiting = asyncio.ensure_future(threads.run(lambda: 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end[3].set()
    assert await asyncio.wait_for(waiting, DEADLINE_S) == 1
    for event in may_end:
        event.set()


async def test_a_function_whose_caller_has_left_before_it_began_does_not_run() -> None:
    threads, loop = Threads(1), asyncio.get_running_loop()
    has_begun, may_end, ran = asyncio.Event(), threading.Event(), list[int]()

    def wait() -> None:
        loop.call_soon_threadsafe(has_begun.set)
        may_end.wait(DEADLINE_S)

    first = asyncio.ensure_future(threads.run(wait))
    await wait_for(has_begun)
    waiting = [asyncio.ensure_future(threads.run(ran.append, number)) for number in range(4)]
    await asyncio.sleep(0)
    for call in waiting[:3]:
        await give_up(call)
    may_end.set()
    await asyncio.gather(first, waiting[3])
    assert ran == [3]


def test_threads_serve_one_event_loop_after_another_until_they_are_closed() -> None:
    threads, before = Threads(2), set(threading.enumerate())

    async def run_many() -> list[int]:
        return await asyncio.gather(*[threads.run(abs, -number) for number in range(20)])

    for _ in range(2):
        assert asyncio.run(run_many()) == list(range(20))
    assert len(set(threading.enumerate()) - before) <= 2
    threads.close()
    asyncio.run(eventually(lambda: set(threading.enumerate()) <= before))
