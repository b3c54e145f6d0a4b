from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import model
from penstock.model import DeadLetter, StreamMessage


def test_a_message_has_the_time_of_its_id() -> None:
    assert StreamMessage("1700000000123-7", None).timestamp == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


def test_a_message_may_be_made_as_it_always_was() -> None:
    message = StreamMessage("1-0", {"n": 1}, 2)
    assert (message.id, message.data, message.delivery_count) == ("1-0", {"n": 1}, 2)
    assert (message.attempts, message.key, message.headers, message.message_id) == (0, None, {}, None)
    assert StreamMessage(id="1-0", data=1) == StreamMessage("1-0", 1)
    assert "1-0" in repr(message)


def letter(**fields: bytes) -> DeadLetter:
    return DeadLetter("1-0", "fatal", "s", "0-1", "g", "c", "ValueError", "x", 1, 1, 5, None, 0, fields)


def test_a_dead_letter_has_the_payload_of_its_entry() -> None:
    assert letter(data=b"{}").data == b"{}"
    assert letter(dlq_reason=b"missing").data is None


@pytest.mark.parametrize(
    "kind",
    [found for found in vars(model).values() if dataclasses.is_dataclass(found)],
    ids=lambda kind: kind.__name__,
)
def test_values_are_frozen(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind)
