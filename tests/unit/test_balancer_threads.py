"""The sync balancer: handlers end and hand over in threads of their own, while others look at the same tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sync.balancer.orphans import Sweep
from penstock.sync.balancer.runner import Runner
from tests.helpers.threads import join, start


class Ending:
    """A stream whose draining lets the handler of another one end, which takes itself off the table."""

    def __init__(self, streams: dict[str, Any], other: str) -> None:
        self._streams, self._other = streams, other
        self.is_draining = False

    def drain(self) -> None:
        self.is_draining = True
        self._streams.pop(self._other, None)


def test_a_handler_that_ends_while_streams_move_is_no_error() -> None:
    runner = Runner.__new__(Runner)
    streams: dict[str, Any] = {}
    streams.update({"1-0": Ending(streams, "3-0"), "2-0": Ending(streams, "1-0"), "3-0": Ending(streams, "2-0")})
    every = list(streams.values())
    runner._streams, runner._moving = streams, {}
    runner._move(3)
    assert all(stream.is_draining for stream in every)


class InFlight:
    """A stream whose handler goes on."""

    def __init__(self) -> None:
        self.is_draining, self.asked = False, 0

    def drain(self) -> None:
        self.is_draining, self.asked = True, self.asked + 1


def moving(streams: dict[str, Any]) -> Runner:
    runner = Runner.__new__(Runner)
    runner._streams, runner._moving = streams, {}
    return runner


def test_a_stream_that_went_and_came_back_between_two_looks_keeps_no_other_from_moving() -> None:
    runner = moving({"1-0": InFlight(), "2-0": InFlight()})
    runner._move(1)
    assert runner._streams["2-0"].is_draining
    runner._streams["2-0"] = InFlight()  # handed over, not wanted by anybody, and claimed again
    runner._move(1)
    assert [stream.asked for stream in runner._streams.values()] == [0, 1]


def test_handlers_that_do_not_let_go_are_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: dict[str, Any] = {"1-0": InFlight(), "2-0": InFlight()}
    runner, asked = moving(streams), []
    for now_s in (0.0, 5.0, 11.0, 16.0, 22.0, 33.0):
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        runner._move(1)
        asked.append([stream.asked for stream in streams.values()])
        assert [stream.is_draining for stream in streams.values()].count(True) == 1
    assert asked == [[0, 1], [0, 1], [1, 1], [1, 1], [1, 2], [2, 2]]


@pytest.mark.usefixtures("hasty_threads")
def test_threads_hand_over_side_by_side() -> None:
    sweep = Sweep(SimpleNamespace(config=None), None, None)  # type: ignore[arg-type]

    def hand_over(name: str) -> None:
        for number in range(300):
            sweep.ignore_for_a_while(f"{number}-{name}")

    tasks = [start(hand_over, name) for name in "abcd"]
    for task in tasks:
        join(task)
    assert len(sweep._handed_over) == 4 * 300, "each is left to others"
