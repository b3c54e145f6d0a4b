"""Every argument and option of every command, each with one hostile value; the value changes with the rotation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_every_command import (
    ALIASES,
    CASES,
    DEAD,
    FIRST,
    OPTIONS,
    TREE,
    WITH,
    WORDS,
    ends_well,
    filled,
    names,
    start_nothing,
)  # fmt: skip

__all__ = ["names"]  # a fixture
pytestmark = pytest.mark.usefixtures("default_server")
PIPELINE = f"""\
name = "orders"
checkpoint = "checkpoint"
source = {{url = "{DEAD}", streams = "orders", schema = "n bigint"}}
sink = [{{kind = "parquet", path = "table"}}]
"""
# Arguments that lead as far as possible where a case has no good call.
FURTHER = {
    **FIRST,
    "consume": [*FIRST["consume"], "--stream", "orders", "--group", "shop"],
    "exporter": ["--url", DEAD],
    "dashboard": ["--url", DEAD],
    "demo": [],
    "archive run": ["--archive", "cold", "--stream", "orders"],
    "pipeline reset": ["orders.toml", "--from", "latest", "--dry-run"],
    **{f"pipeline {verb}": ["orders.toml"] for verb in ("run", "validate", "status", "preview")},
}
NUMBERS = {each: n for n, each in enumerate((name, each.name) for name in TREE for each in TREE[name].params)}


def _usual(name: str, names: dict[str, str]) -> list[str]:
    if name in FURTHER:
        return FURTHER[name]
    case = CASES[ALIASES.get(name, name)]
    words = case.good if case.good is not None else case.unknown
    assert words is not None, "it needs a line in FURTHER"
    return filled(words, names)


def _words(name: str, parameter: Any, hostile: str, names: dict[str, str]) -> list[str]:
    """Returns the words of a call in which all is well except for one argument or option."""
    usual, last = _usual(name, names), WITH.get(name, [])
    if parameter.param_type_name == "argument":
        place = [each.name for each in TREE[name].params if each.param_type_name == "argument"].index(parameter.name)
        ends = next((at for at, word in enumerate(usual) if word.startswith("-")), len(usual))
        return [*usual[:ends][:place], hostile, *usual[:ends][place + 1 :], *usual[ends:], *last]
    spelled = parameter.opts[0]
    given = [spelled] if parameter.is_flag else [spelled, hostile]
    # An option that is given twice has its second value.
    return [*usual, *given, *([] if spelled in last else last)]


@pytest.mark.parametrize("name", TREE)
def test_every_option_takes_a_hostile_value(
    name: str, names: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_nothing(monkeypatch, tmp_path)
    Path("orders.toml").write_text(PIPELINE)
    for parameter in TREE[name].params:
        if parameter.name != "help":
            values = OPTIONS.get(parameter.name, WORDS)
            turn = NUMBERS[name, parameter.name] + (request.config.getoption("--rotation") or 0)
            ends_well(*name.split(), *_words(name, parameter, values[turn % len(values)], names))
