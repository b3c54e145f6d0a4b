"""The parts of a consumer of the sync half, where threads come between any two steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.counters import Tally
from penstock.events import EventName
from penstock.model import StreamMessage
from penstock.sync.delivery.ack_buffer import AckBuffer
from penstock.sync.delivery.group_commands import MAX_IDS, GroupCommands
from penstock.sync.delivery.inbox import Batch, Inbox, Row
from penstock.sync.streams.workers import Workers
from tests.helpers.threads import eventually


def _message(number: int) -> StreamMessage:
    return StreamMessage(f"{number}-0", number, 1, 1)


def _row(number: int) -> Row:
    return b"%d-0" % number, []


def _inbox() -> Inbox:
    return Inbox(lambda rows: [_message(int(row[0].split(b"-")[0])) for row in rows], lambda _: False)


def test_workers_are_woken_for_what_comes_while_others_let_go() -> None:
    inbox = _inbox()
    inbox.add_again([_message(1), _message(2)])
    before = inbox.take(2)
    assert before is not None
    taken: list[Batch | None] = []
    worker = threading.Thread(target=lambda: taken.append(inbox.take(2)), daemon=True)
    worker.start()
    inbox.held.finish(before.messages)  # as many leave as come in
    assert inbox.add_fresh([_row(3), _row(4)]) == 2
    worker.join(30)
    assert [message.id for batch in taken if batch for message in batch.messages] == ["3-0", "4-0"]


def test_a_last_chance_that_one_worker_leaves_is_handed_to_another_that_waits() -> None:
    taken: list[Batch | None] = []

    def is_last_chance(message: StreamMessage) -> bool:
        if message.id == "2-0" and not worker.is_alive() and not taken:
            worker.start()  # it finds nothing: the message is in our hand
            eventually(lambda: inbox._arrivals._condition._waiters)  # type: ignore[attr-defined]
        return message.id == "2-0"

    inbox = Inbox(lambda _: [], is_last_chance)
    worker = threading.Thread(target=lambda: taken.append(inbox.take(2)), daemon=True)
    inbox.add_again([_message(1), _message(2)])
    mine = inbox.take(2)
    assert mine is not None
    assert [message.id for message in mine.messages] == ["1-0"]
    eventually(lambda: taken)
    inbox.close()
    assert [message.id for batch in taken if batch for message in batch.messages] == ["2-0"]


def test_the_reader_goes_on_when_all_that_it_read_is_rejected() -> None:
    inbox = Inbox(lambda _: [], lambda _: False)
    inbox.add_fresh([_row(n) for n in range(10)])
    reader = threading.Thread(target=lambda: inbox.wait_for_room(2), daemon=True)
    reader.start()
    eventually(lambda: inbox._room._condition._waiters)  # type: ignore[attr-defined]
    worker = threading.Thread(target=lambda: inbox.take(1), daemon=True)
    worker.start()
    reader.join(30)
    assert not reader.is_alive()
    inbox.close()
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
    inbox = _inbox()
    inbox.add_fresh([_row(n) for n in range(20_000)])
    taken: list[str] = []

    def work() -> None:
        while (batch := inbox.take_now(1)) is not None:
            taken.append(batch.messages[0].id)

    worker = threading.Thread(target=work)
    worker.start()
    fresh, _ = inbox.empty()
    worker.join(30)
    assert sorted(fresh + taken) == sorted(f"{n}-0" for n in range(20_000))


def test_what_one_acknowledgement_cannot_carry_is_not_forgotten() -> None:
    inbox = _inbox()
    acks = AckBuffer(cast("GroupCommands", None), inbox, Tally(), lambda _: None)
    messages = [_message(n) for n in range(MAX_IDS + 5)]
    inbox.add_again(messages)
    acks.done(messages, [message.id for message in messages], is_again=True)
    carried: Any = acks.take_along(is_calm=False)
    assert len(carried.ids) == MAX_IDS
    assert acks.dirty.is_set(), "nobody else may ever be done"
    assert sorted(inbox.held.unsettled_ids()) == sorted(message.id for message in messages)


def test_a_lease_that_is_lost_when_its_message_is_settled_disturbs_nobody() -> None:
    inbox, events = _inbox(), []
    inbox.add_again([_message(1)])
    nothing = cast("Any", None)
    emit = lambda name, ids: events.append((name, ids))  # noqa: E731
    workers = Workers(
        inbox, nothing, nothing, nothing, Tally(), emit, nothing, nothing, nothing, nothing, 1, lambda: None,
        nothing,
    )  # fmt: skip
    workers.lose_leases(["1-0", "2-0"])
    assert events == [(EventName.LEASE_LOST, ["1-0"])]


@pytest.mark.usefixtures("restless")
def test_what_many_threads_count_adds_up() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.count(retried=1) for _ in range(2_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert tally.metrics().total_retried == 8_000
