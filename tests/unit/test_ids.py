from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ids
from penstock.errors import ConfigurationError
from tests.helpers.threads import join, start

numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers)
def test_an_id_is_two_numbers(ms: int, seq: int) -> None:
    assert ids.parse(f"{ms}-{seq}") == (ms, seq)
    assert ids.parse(str(ms)) == (ms, 0)


@given(st.integers(1, 2**64 - 2), numbers)
def test_before_and_after_are_the_nearest_neighbours(ms: int, seq: int) -> None:
    entry_id = f"{ms}-{seq}"
    assert ids.after(ids.before(entry_id)) == entry_id
    assert ids.before(ids.after(entry_id)) == entry_id
    assert ids.parse(ids.before(entry_id)) < ids.parse(entry_id) < ids.parse(ids.after(entry_id))


@pytest.mark.parametrize(
    ("entry_id", "before", "after"),
    [
        ("0-0", "0-0", "0-1"),
        ("0-1", "0-0", "0-2"),
        ("5-0", f"4-{2**64 - 1}", "5-1"),
        (f"5-{2**64 - 1}", f"5-{2**64 - 2}", "6-0"),
    ],
)
def test_neighbours_at_the_edges(entry_id: str, before: str, after: str) -> None:
    assert (ids.before(entry_id), ids.after(entry_id)) == (before, after)


@pytest.mark.parametrize(
    "text", ["", "-", "-1", "1-", "x", "²-0", "1-x", "1-2-3", "9" * 5_000, f"{2**64}-0", f"1-{2**64}", "+1"]
)
def test_what_the_server_would_not_take_for_an_id_is_none(text: str) -> None:
    assert not ids.is_id(text)
    with pytest.raises(ConfigurationError, match="not a stream id"):
        ids.parse(text)


@pytest.mark.parametrize("text", ["0", "1794700800000"])
def test_a_time_alone_is_not_an_id(text: str) -> None:
    assert ids.parse(text) == (int(text), 0)
    assert not ids.is_id(text)


def test_there_is_nothing_beyond_the_greatest_id() -> None:
    greatest = f"{2**64 - 1}-{2**64 - 1}"
    assert ids.after(greatest) == greatest


@given(numbers)
def test_every_time_can_be_shown(ms: int) -> None:
    assert 1970 <= ids.moment(ms).year <= 9999


def test_message_ids_are_uuids_of_version_7() -> None:
    made = ids.MessageIds().make()
    found = uuid.UUID(made)
    assert (found.version, found.variant, len(made)) == (7, uuid.RFC_4122, 32)


def test_message_ids_never_repeat_within_a_maker() -> None:
    make = ids.MessageIds().make
    assert len({make() for _ in range(50_000)}) == 50_000


def test_message_ids_of_many_makers_and_threads_never_meet() -> None:
    shared = ids.MessageIds().make
    found: list[str] = []

    def make() -> None:
        own = ids.MessageIds().make
        found.extend([shared() if n % 2 else own() for n in range(5_000)])

    tasks = [start(make) for _ in range(8)]
    for task in tasks:
        join(task)
    assert len(set(found)) == 40_000


def test_a_forked_process_makes_ids_of_its_own() -> None:
    maker = ids.MessageIds()
    before = maker.make()[16:]
    ids.MessageIds.forked()
    assert maker.make()[16:] != before


def test_ids_made_together_are_as_unique_and_as_ordered_as_those_made_one_by_one() -> None:
    maker = ids.MessageIds()
    made = [maker.make(), *maker.make_many(5_000), maker.make(), *maker.make_many(3), *maker.make_many(0)]
    assert len(set(made)) == 5_005
    assert {len(message_id) for message_id in made} == {32}
    assert all(message_id[12] == "7" and message_id[16] in "89ab" for message_id in made)
