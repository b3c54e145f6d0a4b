"""The parts of a consumer of the sync half, where threads come between any two steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.counters import Tally
from penstock.events import EventName
from penstock.model import StreamMessage
from penstock.policy import AttemptLimits
from penstock.sync.delivery.acks import AckSender
from penstock.sync.delivery.callables import RunningCall
from penstock.sync.delivery.decoding import DecodedMessages
from penstock.sync.delivery.delivery import Delivery
from penstock.sync.delivery.group_commands import MAX_IDS, Redelivery
from penstock.sync.delivery.in_flight import FreshRow, InFlight
from penstock.sync.streams.workers import DeliveryWorkers
from tests.helpers.threads import eventually

UNLIMITED = AttemptLimits(None, None)


class Numbers:
    """Decodes an entry into the number of its id."""

    def fresh(self, rows: list[FreshRow]) -> DecodedMessages:
        return DecodedMessages([_message(row[0].decode()) for row in rows])

    def again(self, claims: list[Redelivery]) -> DecodedMessages:
        return DecodedMessages([_message(claim.id) for claim in claims])


class Nothing(Numbers):
    """Can decode no entry."""

    def fresh(self, rows: list[FreshRow]) -> DecodedMessages:
        return DecodedMessages()


def _message(entry_id: str) -> StreamMessage:
    return StreamMessage(entry_id, int(entry_id.partition("-")[0]), 1, 1)


def _row(number: int) -> FreshRow:
    return b"%d-0" % number, []


def _again(*numbers: int) -> list[Redelivery]:
    return [Redelivery(f"{number}-0", 1, 1, []) for number in numbers]


def _registry(decoder: Numbers | None = None, limits: Any = UNLIMITED, emit: Any = None) -> InFlight:
    context = SimpleNamespace(
        decoder=decoder or Numbers(),
        config=SimpleNamespace(limits=limits, handler_timeout_ms=None),
        commands=None,
        tally=Tally(),
        emit=emit,
    )
    return InFlight(cast("Any", context))


def test_workers_are_woken_for_what_comes_while_others_let_go() -> None:
    in_flight = _registry()
    in_flight.add_again(_again(1, 2))
    before = in_flight.take(2)
    assert before is not None
    taken: list[Delivery | None] = []
    worker = threading.Thread(target=lambda: taken.append(in_flight.take(2)), daemon=True)
    worker.start()
    in_flight.release(before.messages)  # as many leave as come in
    assert in_flight.add_fresh([_row(3), _row(4)]) == 2
    worker.join(30)
    assert [message.id for delivery in taken if delivery for message in delivery.messages] == ["3-0", "4-0"]


def test_a_last_chance_that_one_worker_leaves_is_handed_to_another_that_waits() -> None:
    taken: list[Delivery | None] = []
    looks = 0

    def is_last_chance(_deliveries: int, _attempts: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            worker.start()  # it finds nothing: the second message is in our hand
            eventually(lambda: in_flight._arrivals._condition._waiters)  # type: ignore[attr-defined]
        return looks >= 2

    in_flight = _registry(limits=SimpleNamespace(is_last_chance=is_last_chance))
    worker = threading.Thread(target=lambda: taken.append(in_flight.take(2)), daemon=True)
    in_flight.add_again(_again(1, 2))
    mine = in_flight.take(2)
    assert mine is not None
    assert [message.id for message in mine.messages] == ["1-0"]
    eventually(lambda: taken)
    in_flight.close()
    assert [message.id for delivery in taken if delivery for message in delivery.messages] == ["2-0"]


def test_the_reader_goes_on_when_all_that_it_read_is_rejected() -> None:
    in_flight = _registry(Nothing())
    in_flight.add_fresh([_row(n) for n in range(10)])
    reader = threading.Thread(target=lambda: in_flight.wait_for_room(2), daemon=True)
    reader.start()
    eventually(lambda: in_flight._room._condition._waiters)  # type: ignore[attr-defined]
    worker = threading.Thread(target=lambda: in_flight.take(1), daemon=True)
    worker.start()
    reader.join(30)
    assert not reader.is_alive()
    in_flight.close()
    worker.join(30)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_what_waits_can_be_taken_out_while_a_worker_takes_some() -> None:
    in_flight = _registry()
    in_flight.add_fresh([_row(n) for n in range(20_000)])
    taken: list[str] = []

    def work() -> None:
        while (delivery := in_flight.take_now(1)) is not None:
            taken.append(delivery.messages[0].id)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    fresh, _ = in_flight.withdraw_waiting()
    worker.join(30)
    assert sorted(fresh + taken) == sorted(f"{n}-0" for n in range(20_000))


def test_what_one_acknowledgement_cannot_carry_is_not_forgotten() -> None:
    in_flight = _registry()
    acks = AckSender(in_flight)
    in_flight.add_again(_again(*range(MAX_IDS + 5)))
    delivery = in_flight.take_now(MAX_IDS + 5)
    assert delivery is not None
    ids = [message.id for message in delivery.messages]
    delivery.finish(delivery.messages, ids)
    carried = acks.take(for_read=True)
    assert carried is not None
    assert len(carried.ids) == MAX_IDS
    assert in_flight.has_finished.is_set(), "nobody else may ever be done"
    assert sorted(in_flight.unsettled_ids()) == sorted(ids)


def test_a_lease_that_is_lost_when_its_message_is_settled_disturbs_nobody() -> None:
    events: list[tuple[EventName, list[str]]] = []
    in_flight = _registry(emit=lambda name, ids: events.append((name, ids)))
    in_flight.add_again(_again(1))
    nothing = cast("Any", None)
    DeliveryWorkers(in_flight, nothing, nothing, 1, nothing, nothing).lose_leases(["1-0", "2-0"])
    assert events == [(EventName.LEASE_LOST, ["1-0"])]


class EndsWhenSeen(RunningCall):
    """A call, and its message, that ends as soon as another thread has seen that it runs."""

    id = "1-0"

    def is_overdue(self, now_s: float) -> bool:
        is_overdue = super().is_overdue(now_s)
        self.messages = ()
        return is_overdue

    @property
    def lease_lost(self) -> bool:
        self.messages = ()
        return True


def test_a_call_that_ends_while_it_is_interrupted_disturbs_nobody() -> None:
    nothing, call = cast("Any", None), EndsWhenSeen()
    in_flight = _registry()
    cast("Any", in_flight.context).commands = SimpleNamespace(keys=SimpleNamespace(stream="s"), group="g")
    workers = DeliveryWorkers(in_flight, nothing, nothing, 1, nothing, nothing)
    workers.running.append(call)
    call.messages, call.deadline_s = [SimpleNamespace(id="1-0")], 0.0
    workers.interrupt_overdue()
    assert not call.messages
    call.messages = [call]
    workers.lose_leases([])
    assert not call.messages


@pytest.mark.usefixtures("restless")
def test_what_many_threads_count_adds_up() -> None:
    tally = Tally()
    threads = [
        threading.Thread(target=lambda: [tally.count(retried=1) for _ in range(2_000)], daemon=True) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert tally.metrics().total_retried == 8_000
