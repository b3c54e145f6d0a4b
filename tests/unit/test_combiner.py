"""Which calls travel together: a lone one at once, a few in one batch, many in two halves that take turns."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.aio import Combiner
from tests.helpers.aio import eventually, next_turn


class Road:
    """Keeps what was sent until the test says that it has arrived."""

    def __init__(self, linger_s: float = 0.0) -> None:
        self.sent: list[list[int]] = []
        self._done: list[Callable[[], None]] = []
        self.combiner: Combiner[int] = Combiner(self._never, linger_s, 1_000)
        self.combiner.send_at_once = self._express

    async def _never(self, batch: list[int]) -> None:
        raise AssertionError(batch)

    def _express(self, batch: list[int], done: Callable[[], None]) -> bool:
        self.sent.append(batch)
        self._done.append(done)
        return True

    def arrive(self) -> None:
        self._done.pop()()


async def test_a_lone_caller_is_served_at_once_from_the_second_time_on() -> None:
    road = Road()
    road.combiner.put(1)
    assert road.sent == [], "perhaps others come in the same turn of the event loop"
    await next_turn()
    assert road.sent == [[1]]
    road.arrive()
    road.combiner.put(2)
    assert road.sent == [[1], [2]]


async def test_two_callers_find_together() -> None:
    road = Road()
    road.combiner.put(1)
    await next_turn()
    road.combiner.put(2)
    road.arrive()
    road.combiner.put(3)  # the first caller, who comes again as soon as it is served
    await next_turn()
    assert road.sent == [[1], [2, 3]]
    road.arrive()
    road.combiner.put(4)
    road.combiner.put(5)
    await next_turn()
    assert road.sent[2:] == [[4, 5]]


async def test_of_many_callers_one_half_travels_while_the_other_prepares() -> None:
    road = Road()
    for number in range(20):
        road.combiner.put(number)
    await next_turn()
    assert road.sent == [list(range(10))]
    road.arrive()
    assert road.sent[1] == list(range(10, 20)), "at once, in the order in which they came"
    for number in range(20, 30):
        road.combiner.put(number)
    road.arrive()
    assert road.sent[2] == list(range(20, 30))


async def test_who_asks_for_a_linger_gets_one_batch() -> None:
    road = Road(linger_s=0.001)
    for number in range(20):
        road.combiner.put(number)
    await eventually(lambda: bool(road.sent))
    assert road.sent == [list(range(20))]
