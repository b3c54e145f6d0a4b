"""Rows become results: one for each id, and the first one stays. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.spark.pipeline import Results
from penstock.spark.pipeline.sinks.results import ResultInvalid, SaveTask, opened, result_of

AT = datetime(2026, 11, 15, 8, tzinfo=UTC)
SCHEMA = pa.schema([
    ("order", pa.string()), ("total", pa.decimal128(8, 2)), ("tags", pa.map_(pa.string(), pa.string())),
    ("at", pa.timestamp("us", "UTC")),
])  # fmt: skip
Save = Callable[..., int]


@pytest.fixture
def sink(tmp_path: Path) -> Results:
    return Results(id="order", result_kind="order", options={"root": str(tmp_path), "compress": "true"})


@pytest.fixture
def save(sink: Results) -> Save:
    """Saves rows as one task; returns how many of them found another result in their place."""

    def saved(*rows: dict[str, Any]) -> int:
        batches = [pa.RecordBatch.from_pylist([row], SCHEMA) for row in rows]
        (told,) = SaveTask(sink)(iter(batches))
        return int(told["others"][0].as_py())

    return saved


def row(order: str, total: str = "1.50") -> dict[str, Any]:
    return {"order": order, "total": Decimal(total), "tags": [("a", "b")], "at": AT}


def test_rows_are_results_and_a_repetition_changes_nothing(sink: Results, save: Save) -> None:
    assert [save(row("o-1"), row("o-2")), save(row("o-1"), row("o-2"), row("o-3"))] == [0, 0]
    backend = opened(sink)
    found = backend.get("o-1")
    assert found is not None
    assert (found.kind, found.data["total"], found.data["tags"]) == ("order", "1.50", {"a": "b"})
    assert sorted(result.task_id for result in backend.iter("order")) == ["o-1", "o-2", "o-3"]
    backend.close()


def test_a_row_whose_id_has_another_result_is_counted_and_left_out(sink: Results, save: Save) -> None:
    assert save(row("o-1"), row("o-1", "2.00")) == 1
    assert save(row("o-1", "3.00")) == 1
    backend = opened(sink)
    found = backend.get("o-1")
    assert found is not None
    assert found.data["total"] == "1.50"
    backend.close()


def test_columns_and_the_time_can_be_chosen() -> None:
    sink = Results(id="n", result_kind="order", columns=("total",), finished_at="at")
    result = result_of(sink, {"n": 7, "total": 1.5, "more": "x", "at": AT})
    assert (result.task_id, result.data, result.finished_at) == ("7", {"total": 1.5}, AT)
    plain = result_of(Results(id="n", result_kind="order", finished_at="at"), {"n": 7, "total": 1, "at": None})
    assert plain.data == {"total": 1}
    assert plain.finished_at > AT


def test_an_id_that_no_result_can_have_is_told() -> None:
    sink = Results(id="n", result_kind="order")
    with pytest.raises(ResultInvalid, match="a row has null in 'n'"):
        result_of(sink, {"n": None})
    with pytest.raises(ConfigurationError, match="task_id='a b'"):
        result_of(sink, {"n": "a b"})


def test_an_option_of_the_wrong_kind_is_told() -> None:
    options = {"dsn": "postgresql://localhost/x", "timeout_s": "soon"}
    with pytest.raises(ConfigurationError, match=r"options.timeout_s = 'soon' must be a number of seconds"):
        opened(Results(id="n", result_kind="order", backend="postgres", options=options))
