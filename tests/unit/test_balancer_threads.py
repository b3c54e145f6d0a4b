"""The sync balancer: handlers end and hand over in threads of their own, while others look at the same tables."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.sync.balancer.runner import Runner
from penstock.sync.balancer.sweep import Sweep


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


@pytest.mark.usefixtures("hasty_threads")
def test_threads_hand_over_side_by_side() -> None:
    sweep = Sweep(*[None] * 3)  # type: ignore[arg-type]

    def hand_over(name: str) -> None:
        for number in range(300):
            sweep.keep_away(f"{number}-{name}")

    threads = [threading.Thread(target=hand_over, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sweep._handed_over) == 4 * 300, "each is left to others"
