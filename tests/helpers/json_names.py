"""The names in what `--json` and the `.json` addresses of the dashboard print: programs rely on them.

`json_names.json` lists them. With PENSTOCK_JSON_NAMES=1, the tests write it instead of comparing; `make reference` then writes them into the reference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("json_names.json")
# Their content is the user's, or has names of streams as keys.
_FREE = {"payload", "headers", "fields", "data", "result", "value", "editable", "starting", "broken", "row"}
_BY_NAME = {"streams", "by_owner"}


def known() -> dict[str, list[str]]:
    """Returns the names, by command or address."""
    found: dict[str, list[str]] = json.loads(FILE.read_text())
    return found


def check(what: str, printed: Iterable[Any]) -> None:
    """Compares the names in objects with those that are known."""
    found = sorted({name for value in printed for name in _names(value)})
    if os.environ.get("PENSTOCK_JSON_NAMES"):
        FILE.write_text(json.dumps(dict(sorted({**known(), what: found}.items())), indent=1) + "\n")
    assert found == known().get(what), f"{what} prints other names than {FILE.name} lists"


def _names(value: Any, prefix: str = "") -> Iterator[str]:
    for name, item in value.items():
        yield f"{prefix}{name}"
        if name in _FREE or name.endswith("_by_kind"):
            continue
        by_name = list(item.values()) if isinstance(item, dict) and name in _BY_NAME else item
        for each in by_name if isinstance(by_name, list) else [by_name]:
            if isinstance(each, dict):
                yield from _names(each, f"{prefix}{name}.")
