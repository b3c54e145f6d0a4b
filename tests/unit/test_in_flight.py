"""What a consumer holds, wherever it is: waiting, being decoded, with a worker, or by itself."""

from __future__ import annotations

from penstock.delivery.in_flight import InFlight, Row
from penstock.model import StreamMessage


def rows(*numbers: int) -> list[Row]:
    return [(b"%d-0" % number, [b"data", b"1"]) for number in numbers]


def decode(taken: list[Row]) -> list[StreamMessage]:
    return [StreamMessage(row[0].decode(), None) for row in taken]


def test_new_messages_are_taken_in_order_and_stay_held_until_they_are_finished() -> None:
    held = InFlight()
    assert held.add_fresh(rows(1, 2)) == 2
    assert held.add_fresh(rows(3)) == 1
    first, second = held.take_fresh(2, decode), held.take_fresh(2, decode)
    assert [m.id for m in first] == ["1-0", "2-0"]
    assert [m.id for m in second] == ["3-0"]
    assert len(held) == 3
    assert held.finish(first) is first
    assert held.ids() == ["3-0"]
    assert held.finish(second) == second
    assert len(held) == 0


def test_a_message_is_held_while_it_is_decoded() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2))
    seen: list[list[str]] = []

    def look(taken: list[Row]) -> list[StreamMessage]:
        seen.append(held.ids())
        return decode(taken)

    taken = held.take_fresh(2, look)
    assert seen == [["1-0", "2-0"]]
    assert held.find(["1-0"]) == {"1-0": taken[0]}


def test_a_message_that_is_let_go_while_it_is_decoded_does_not_reach_the_worker() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2))

    def lose(taken: list[Row]) -> list[StreamMessage]:
        held.drop(["1-0"])
        return decode(taken)

    assert [m.id for m in held.take_fresh(2, lose)] == ["2-0"]
    assert held.ids() == ["2-0"]


def test_what_a_worker_has_set_apart_stays_so_when_the_heartbeat_looks_before_the_rest_is_decoded() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2))
    apart = StreamMessage("1-0", None)

    def reject_the_first(taken: list[Row]) -> list[StreamMessage]:
        held.set_apart(apart)
        assert held.ids() == ["1-0", "2-0"]
        return decode(taken[1:])

    assert [m.id for m in held.take_fresh(2, reject_the_first)] == ["2-0"]
    assert held.get("1-0") is apart
    assert held.finish([apart]) == [apart]


def test_what_a_worker_cannot_decode_is_held_by_itself() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2))

    def reject(taken: list[Row]) -> list[StreamMessage]:
        held.set_apart(StreamMessage("1-0", None))
        return decode(taken[1:])

    batch = held.take_fresh(2, reject)
    held.finish(batch)
    assert held.ids() == ["1-0"]


def test_of_a_batch_that_lost_a_message_the_others_are_finished() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2, 3))
    batch = held.take_fresh(3, decode)
    assert held.drop(["2-0", "9-0"]) == ["2-0"]
    assert [m.id for m in held.finish(batch)] == ["1-0", "3-0"]
    assert held.finish(batch) == []


def test_a_message_that_came_again_is_not_finished_by_its_former_self() -> None:
    held = InFlight()
    held.add_fresh(rows(1))
    batch = held.take_fresh(1, decode)
    held.drop(["1-0"])
    again = StreamMessage("1-0", "again")
    assert held.add_all([again]) == [again]
    assert held.finish(batch) == []
    assert held.get("1-0") is again


def test_what_waits_can_be_lost_and_called_off() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2, 3))
    assert held.drop(["2-0"]) == ["2-0"]
    assert held.call_off() == ["1-0", "3-0"]
    assert held.take_fresh(10, decode) == []
    assert held.find(["1-0", "2-0", "3-0"]) == {"1-0": None, "3-0": None}


def test_what_is_held_is_not_taken_in_twice() -> None:
    held = InFlight()
    held.add_fresh(rows(1, 2))
    batch = held.take_fresh(1, decode)
    assert held.add_all([StreamMessage("2-0", None), StreamMessage("7-0", None)]) == [StreamMessage("7-0", None)]
    assert held.add_fresh(rows(1, 2, 3, 7, 8)) == 2, "the group was set back"
    assert sorted(held.ids()) == ["1-0", "2-0", "3-0", "7-0", "8-0"]
    held.finish(batch)
    assert held.add_fresh(rows(1)) == 1, "done and handed out once more"
