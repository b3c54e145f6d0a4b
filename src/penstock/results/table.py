"""All results as one table."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.errors import ConfigurationError
from penstock.lazy_imports import require
from penstock.results.backend import ResultBackend
from penstock.task import Result

COLUMNS = ("task_id", "kind", "status", "data", "error", "attempts", "started_at", "finished_at")
Form = Literal["auto", "rows", "arrow"]


async def results_table(backend: ResultBackend, kind: str | None = None, form: Form = "auto") -> Any:
    """Return the results as a `pyarrow.Table` if pyarrow is installed, else as a list of dicts with the same columns.

    `form` asks for `"arrow"` or `"rows"`. In an Arrow table `data` is JSON, since results of different kinds differ in
    shape; in rows it is what the handler returned.
    """
    if form not in ("auto", "rows", "arrow"):
        raise ConfigurationError(f"form={form!r} must be 'auto', 'rows' or 'arrow'")
    arrow = None if form == "rows" else _arrow(is_required=form == "arrow")
    rows = [_row(result) async for result in backend.iter(kind)]
    return rows if arrow is None else _table(arrow, rows)


def _row(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in COLUMNS} | {"status": result.status.value}


def _arrow(is_required: bool) -> Any:
    try:
        return require("pyarrow", "spark", "a table of Arrow")
    except ConfigurationError:
        if is_required:
            raise
        return None


def _table(arrow: Any, rows: list[dict[str, Any]]) -> Any:
    moment = arrow.timestamp("us", "UTC")
    types = {"attempts": arrow.int64(), "started_at": moment, "finished_at": moment}
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in COLUMNS])
    return arrow.Table.from_pylist([row | {"data": _json(row["data"])} for row in rows], schema)


def _json(data: Any) -> str | None:
    return None if data is None else msgspec.json.encode(data).decode()
