"""What a consumer holds, wherever it is: waiting, being decoded, with a worker, or by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from penstock.config import ConsumerConfig
from penstock.counters import Tally
from penstock.delivery.decoding import DecodedMessages, Decoder
from penstock.delivery.delivery import Delivery
from penstock.delivery.drain import Drain
from penstock.delivery.group_commands import Parking, Redelivery
from penstock.delivery.in_flight import FreshRow, InFlight
from penstock.model import StreamMessage


class DecoderWithALook(Decoder):
    """Lets a test look, or do something, while entries are being decoded."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__("orders", None, "orders", None)
        self._look = look

    def fresh(self, rows: Sequence[FreshRow]) -> DecodedMessages:
        self._look()
        return super().fresh(rows)


def registry(while_decoding: Callable[[], object] = lambda: None) -> InFlight:
    decoder = DecoderWithALook(while_decoding)
    context = SimpleNamespace(decoder=decoder, config=ConsumerConfig(group="workers"), tally=Tally())
    return InFlight(cast("Any", context))


def rows(*numbers: int) -> list[FreshRow]:
    return [(b"%d-0" % number, [b"data", b"1"]) for number in numbers]


def unreadable(number: int) -> FreshRow:
    return b"%d-0" % number, [b"data", b"no JSON"]


def again(*numbers: int) -> list[Redelivery]:
    return [Redelivery(f"{number}-0", 1, 1, [b"data", b"1"]) for number in numbers]


def taken(held: InFlight, limit: int) -> Delivery:
    delivery = held.take_now(limit)
    assert delivery is not None
    return delivery


def ids(delivery: Delivery) -> list[str]:
    return [message.id for message in delivery.messages]


def get(held: InFlight, entry_id: str) -> StreamMessage | None:
    return held.find([entry_id]).get(entry_id)


def test_new_messages_are_taken_in_order_and_stay_held_until_they_are_finished() -> None:
    held = registry()
    assert held.add_fresh(rows(1, 2)) == 2
    assert held.add_fresh(rows(3)) == 1
    first, second = taken(held, 2), taken(held, 2)
    assert ids(first) == ["1-0", "2-0"]
    assert ids(second) == ["3-0"]
    assert len(held) == 3
    assert held.release(first.messages) is first.messages
    assert held.ids() == ["3-0"]
    assert held.release(second.messages) == second.messages
    assert len(held) == 0


def test_what_is_finished_stays_in_flight_until_the_server_has_answered() -> None:
    held = registry()
    held.add_fresh(rows(1))
    delivery = taken(held, 1)
    delivery.finish(delivery.messages, ids(delivery))
    assert (held.ids(), held.unsettled_ids()) == ([], ["1-0"])
    told, held.finished = held.finished, []
    held.unanswered.append(told)
    assert held.unsettled_ids() == ["1-0"]
    held.answered(told)
    assert held.unsettled_ids() == []


def test_a_message_is_held_while_it_is_decoded() -> None:
    seen: list[list[str]] = []
    held = registry(lambda: seen.append(held.ids()))
    held.add_fresh(rows(1, 2))
    delivery = taken(held, 2)
    assert seen == [["1-0", "2-0"]]
    assert held.find(["1-0"]) == {"1-0": delivery.messages[0]}


def test_a_message_that_is_let_go_while_it_is_decoded_does_not_reach_the_worker() -> None:
    held = registry(lambda: held.drop(["1-0"]))
    held.add_fresh(rows(1, 2))
    assert ids(taken(held, 2)) == ["2-0"]
    assert held.ids() == ["2-0"]


def test_a_message_that_is_let_go_while_it_is_found_unreadable_is_not_dead_lettered() -> None:
    held = registry(lambda: held.drop(["1-0"]))
    held.add_fresh([unreadable(1), *rows(2)])
    assert ids(taken(held, 2)) == ["2-0"]
    assert (held.ids(), list(held.rejected)) == (["2-0"], [])


def test_what_a_worker_cannot_decode_stays_by_itself_when_the_heartbeat_looks_meanwhile() -> None:
    held = registry(lambda: held.find(["2-0"]))
    held.add_fresh([unreadable(1), *rows(2)])
    assert ids(taken(held, 2)) == ["2-0"]
    apart = get(held, "1-0")
    assert apart is not None
    assert held.release([apart]) == [apart]


def test_what_a_worker_cannot_decode_is_held_by_itself() -> None:
    held = registry()
    held.add_fresh([unreadable(1), *rows(2)])
    held.release(taken(held, 2).messages)
    assert held.ids() == ["1-0"]
    assert [entry.id for entry in held.rejected] == ["1-0"]


def test_of_a_batch_that_lost_a_message_the_others_are_finished() -> None:
    held = registry()
    held.add_fresh(rows(1, 2, 3))
    batch = taken(held, 3).messages
    assert held.drop(["2-0", "9-0"]) == ["2-0"]
    assert [m.id for m in held.release(batch)] == ["1-0", "3-0"]
    assert held.release(batch) == []


def test_a_message_that_came_again_is_not_finished_by_its_former_self() -> None:
    held = registry()
    held.add_fresh(rows(1))
    batch = taken(held, 1).messages
    held.drop(["1-0"])
    assert held.add_again(again(1)) == 1
    newer = get(held, "1-0")
    assert held.release(batch) == []
    assert get(held, "1-0") is newer is not batch[0]


def test_what_waits_can_be_lost_and_called_off() -> None:
    held = registry()
    held.add_fresh(rows(1, 2, 3))
    held.add_again(again(7))
    assert held.drop(["2-0"]) == ["2-0"]
    fresh, repeated = held.withdraw_waiting()
    assert (fresh, [m.id for m in repeated]) == (["1-0", "3-0"], ["7-0"])
    assert held.take_now(10) is None
    assert held.find(["1-0", "2-0", "3-0"]) == {"1-0": None, "3-0": None}


class CountedPasses(list[str]):
    """Counts how often somebody walks through it."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


async def test_what_waits_is_handed_back_without_a_look_at_all_for_each() -> None:
    held, parked = registry(), list[int]()

    async def park(parkings: Sequence[Parking]) -> list[bool]:
        parked.append(len(parkings))
        return [True] * len(parkings)

    cast("Any", held.context).commands = SimpleNamespace(is_fenced=False, park=park)
    cast("Any", held.context).emit = lambda *_, **__: None
    held.add_fresh(rows(*range(1, 10_001)))
    drop, dropped = held.drop, CountedPasses()
    cast("Any", held).drop = lambda unwanted: dropped.extend(drop(unwanted)) or dropped
    nothing = cast("Any", None)
    drain = Drain(held, nothing, nothing)
    await drain._park(drain._waiting())
    assert parked == [10_000]
    assert dropped.passes == 1


async def test_what_is_handed_back_is_held_by_every_look_until_the_server_has_answered() -> None:
    held, seen = registry(), list[list[str]]()
    look = threading.Thread(target=lambda: seen.append(held.unsettled_ids()), daemon=True)

    async def park(parkings: Sequence[Parking]) -> list[bool]:
        look.join()
        return [True] * len(parkings)

    def drop(unwanted: Iterable[str]) -> list[str]:
        dropped = drop_now(unwanted)
        look.start()
        look.join(0.05)  # as long as the list is locked, it waits
        return dropped

    cast("Any", held.context).commands = SimpleNamespace(is_fenced=False, park=park)
    cast("Any", held.context).emit = lambda *_, **__: None
    held.add_fresh(rows(1, 2))
    drop_now, cast("Any", held).drop = held.drop, drop
    nothing = cast("Any", None)
    drain = Drain(held, nothing, nothing)
    await drain._park(drain._waiting())
    assert seen == [["1-0", "2-0"]]
    assert held.unsettled_ids() == []


def test_only_messages_that_wait_for_a_handler_are_suspects() -> None:
    held = registry()
    held.add_fresh(rows(1))
    undecodable = Redelivery("3-0", 1, 1, [b"data", b"no JSON"])
    held.add_again([*again(1, 2), undecodable], are_suspects=True)
    assert held._suspects == {"2-0"}
    assert taken(held, 10).is_suspect
    assert held._suspects == set()


def test_what_is_held_is_not_taken_in_twice() -> None:
    held = registry()
    held.add_fresh(rows(1, 2))
    batch = taken(held, 1).messages
    assert held.add_again(again(2, 7)) == 1
    assert held.add_fresh(rows(1, 2, 3, 7, 8)) == 2, "the group was set back"
    assert sorted(held.ids()) == ["1-0", "2-0", "3-0", "7-0", "8-0"]
    held.release(batch)
    assert held.add_fresh(rows(1)) == 1, "done and handed out once more"


def test_after_the_end_of_a_run_nobody_is_woken_for_nothing() -> None:
    held = registry()
    events = held.has_finished, held.has_parked, held.has_rejected
    held.close()
    assert [event.is_set() for event in events] == [True] * 3, "everybody who waits ends"
    held.reopen()
    assert [event.is_set() for event in events] == [False] * 3


def test_what_is_done_does_not_run_again_when_it_is_claimed_before_it_is_acknowledged() -> None:
    held = registry()
    held.add_fresh(rows(1))
    delivery = taken(held, 1)
    delivery.finish(delivery.messages, ids(delivery))
    assert held.add_again(again(1)) == 0
    assert (held.take_now(1), held.unsettled_ids()) == (None, ["1-0"])
