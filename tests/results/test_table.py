"""All results as one table."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.results.backend import results_table
from penstock.results.fs import FSBackend
from penstock.task import Result, Status

FINISHED = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
async def backend(tmp_path: Path) -> FSBackend:
    backend = FSBackend(tmp_path)
    await backend.save(
        Result(task_id="a", kind="resize", data={"x": [1, b"y"]}, finished_at=FINISHED, started_at=FINISHED)
    )
    await backend.save(Result(task_id="b", kind="mail", status=Status.ERROR, error="no", finished_at=FINISHED))
    return backend


async def test_results_are_rows_of_one_arrow_table(backend: FSBackend) -> None:
    table = await results_table(backend)
    assert isinstance(table, pa.Table)
    [resize] = (await results_table(backend, "resize")).to_pylist()
    assert json.loads(resize.pop("data")) == {"x": [1, "eQ=="]}
    assert resize == {
        "task_id": "a",
        "kind": "resize",
        "status": "ok",
        "error": None,
        "attempts": 1,
        "started_at": FINISHED,
        "finished_at": FINISHED,
    }
    assert sorted(table.column("kind").to_pylist()) == ["mail", "resize"]
    assert (await results_table(backend, "nothing")).schema == table.schema


async def test_without_pyarrow_they_are_plain_rows(backend: FSBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await results_table(backend, form="rows")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rows = await results_table(backend)
    assert rows == expected
    assert sorted(row["task_id"] for row in rows) == ["a", "b"]
    assert next(row for row in rows if row["task_id"] == "a")["data"] == {"x": [1, b"y"]}
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[spark\]'"):
        await results_table(backend, form="arrow")
    with pytest.raises(ConfigurationError, match="form="):
        await results_table(backend, form="csv")
