from __future__ import annotations

import pytest

from penstock.spark.source.catalogue import StreamState, find_gap
from penstock.spark.source.offsets import Position


def _state(length: int, first: str | None, last: str, added: int | None, deleted: str | None = "0-0") -> StreamState:
    return StreamState(length, last, first, added, deleted)


def test_nothing_is_missing_while_the_position_is_there() -> None:
    assert find_gap("s", Position("5-0", 5), _state(10, "1-0", "10-0", 10)) is None


def test_trimming_up_to_the_position_loses_nothing() -> None:
    assert find_gap("s", Position("5-0", 5), _state(5, "6-0", "10-0", 10)) is None


def test_trimming_beyond_the_position_is_counted() -> None:
    gap = find_gap("s", Position("5-0", 5), _state(2, "9-0", "10-0", 10))
    assert gap is not None
    assert (gap.count, gap.is_exact, gap.resume) == (3, True, Position("8-18446744073709551615", 8))
    assert (
        str(gap) == "stream 's': 3 entries after 5-0 and before 9-0 are lost: they were trimmed before they were read"
    )


def test_everything_trimmed_is_counted() -> None:
    gap = find_gap("s", Position("5-0", 5), _state(0, None, "10-0", 10))
    assert gap is not None
    assert (gap.count, gap.resume) == (5, Position("10-0", 10))


def test_single_deletions_make_the_count_an_upper_bound() -> None:
    gap = find_gap("s", Position("5-0", 5), _state(2, "9-0", "10-0", 10, deleted="8-0"))
    assert gap is not None
    assert not gap.is_exact
    assert "up to 3 entries" in str(gap)


def test_deleting_what_was_read_is_no_loss() -> None:
    assert find_gap("s", Position("5-0", 5), _state(6, "3-0", "10-0", 10, deleted="4-0")) is None


@pytest.mark.parametrize("state", [None, _state(1, "2-0", "2-0", 1), _state(3, "6-0", "9-0", 3)])
def test_a_stream_that_was_deleted_or_made_anew_is_a_loss(state: StreamState | None) -> None:
    assert find_gap("s", Position("5-0", 5), state) is not None


def test_a_stream_that_was_made_anew_is_told_though_it_has_grown_beyond_the_old_one() -> None:
    # All its entries are behind the position, and more of them than were added since.
    gap = find_gap("s", Position("5-0", 5), _state(8, "6-0", "20-0", 8))
    assert gap is not None
    assert (gap.count, gap.resume) == (None, Position("5-18446744073709551615", 0))


def test_a_stream_that_has_never_been_there_is_no_loss() -> None:
    assert find_gap("s", Position("0-0", 0), None) is None


class TestServersThatDoNotCount:
    def test_an_entry_before_the_position_proves_that_nothing_is_missing(self) -> None:
        assert find_gap("s", Position("5-0"), _state(7, "4-0", "10-0", None, None)) is None

    def test_else_entries_may_be_missing(self) -> None:
        gap = find_gap("s", Position("5-0"), _state(4, "7-0", "10-0", None, None))
        assert gap is not None
        assert gap.count is None

    def test_unless_the_first_entry_is_the_next_possible_one(self) -> None:
        assert find_gap("s", Position("5-0"), _state(4, "5-1", "10-0", None, None)) is None

    def test_an_empty_stream_without_news_misses_nothing(self) -> None:
        assert find_gap("s", Position("5-0"), _state(0, None, "5-0", None, None)) is None
        assert find_gap("s", Position("5-0"), _state(0, None, "6-0", None, None)) is not None


def test_a_position_that_is_ahead_of_its_stream_has_missed_nothing() -> None:
    assert find_gap("s", Position("50-0", 10), _state(10, "1-0", "10-0", 10)) is None
    assert find_gap("s", Position("50-0", 10), _state(11, "1-0", "11-0", 11)) is None
