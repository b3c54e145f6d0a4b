"""Binding a table to a type: what fits is bound, and a mistake is named with its place, its value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from penstock.errors import ConfigurationError, SettingsError
from penstock.settings.binding import bind, lines_of, nearest_line, parse_text


@dataclass(frozen=True)
class Pipe:
    path: str
    bore_mm: Annotated[int, msgspec.Meta(ge=1, le=900)] = 20
    slope: float = 0.5
    kind: Literal["steel", "clay"] = "steel"
    joints: tuple[str, ...] = ()
    colour: Literal["red", "grey"] | None = None
    password: str | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "clay" and self.bore_mm > 300:
            raise ConfigurationError("clay is made up to bore_mm=300")


class Valve(msgspec.Struct, frozen=True):
    name: str
    pipe: Pipe


def where(key: str) -> str:
    return f"house.toml:7: pipe.{key}" if key else "house.toml:6: [pipe]"


def test_a_table_becomes_a_dataclass_or_a_struct() -> None:
    given = {"path": "a", "joints": ["x", "y"], "slope": 1, "options": {"n": 2}}
    pipe = bind(given, Pipe, where=where)
    assert pipe == Pipe("a", joints=("x", "y"), slope=1.0, options={"n": 2})
    assert bind({"name": "main", "pipe": given}, Valve, where=where) == Valve("main", pipe)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("steel", "house.toml:6: [pipe] must be a table, not 'steel'"),
        ({}, "house.toml:6: [pipe] needs the key 'path'"),
        ({"path": "a", "bore": 1}, "house.toml:7: pipe.bore is unknown: did you mean 'bore_mm'? available: path, "),
        ({"path": 1}, "house.toml:7: pipe.path=1 must be a string"),
        ({"path": "a", "bore_mm": 1.0}, "house.toml:7: pipe.bore_mm=1.0 must be a whole number"),
        ({"path": "a", "bore_mm": True}, "house.toml:7: pipe.bore_mm=True must be a whole number"),
        ({"path": "a", "bore_mm": 0}, "house.toml:7: pipe.bore_mm=0 must be 1 or more"),
        ({"path": "a", "bore_mm": 901}, "house.toml:7: pipe.bore_mm=901 must be 900 or less"),
        ({"path": "a", "slope": "x"}, "house.toml:7: pipe.slope='x' must be a number"),
        ({"path": "a", "kind": "tin"}, "house.toml:7: pipe.kind='tin' must be one of steel, clay"),
        ({"path": "a", "colour": "blue"}, "house.toml:7: pipe.colour='blue' must be one of red, grey"),
        ({"path": "a", "joints": 7}, "house.toml:7: pipe.joints=7 must be a list"),
        ({"path": "a", "joints": ["x", 1]}, "house.toml:7: pipe.joints[1] must be a string"),
        ({"path": "a", "options": 1}, "house.toml:7: pipe.options=1 must be a table"),
        ({"path": "a", "password": 1234}, "house.toml:7: pipe.password='***' must be a string"),
        (
            {"path": "a", "kind": "clay", "bore_mm": 400},
            "house.toml:6: [pipe]: clay is made up to bore_mm=300",
        ),
    ],
)
def test_a_mistake_names_place_key_value_and_what_was_expected(table: object, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        bind(table, Pipe, where=where)
    assert str(error.value).startswith(message)
    assert error.value.__cause__ is None


def test_a_mistake_in_a_table_below_is_named_by_its_path() -> None:
    with pytest.raises(SettingsError, match=r"pipe\.pipe=\{\} needs the key 'path'"):
        bind({"name": "main", "pipe": {}}, Valve, where=where)
    with pytest.raises(SettingsError, match=r"pipe\.pipe\.bore_mm must be a whole number"):
        bind({"name": "main", "pipe": {"path": "a", "bore_mm": "wide"}}, Valve, where=where)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5_000", int, 5000),
        (" 05 ", int, 5),
        ("_5", int, 5),
        ("1.5", int, "1.5"),
        ("soon", int, "soon"),
        ("On", bool, True),
        ("no", bool, False),
        ("perhaps", bool, "perhaps"),
        ("1", str, "1"),
        ("2.5", object, 2.5),
        ("[1, 2]", object, [1, 2]),
        ("eu-1", object, "eu-1"),
        ("1\nother = 2", object, "1\nother = 2"),
    ],
)
def test_a_text_stands_for_a_value_of_the_type_that_is_wanted(text: str, kind: object, value: Any) -> None:
    assert parse_text(text, kind) == value
    assert type(parse_text(text, kind)) is type(value)


def test_each_table_of_an_array_has_its_own_lines() -> None:
    lines = lines_of(
        "name = 'x'\n[[sink]]\nkind = 'a'\n[[sink]]\nkind = 'b'\n[sink.options]\nk = 1\n[[ step ]] # last\n"
    )
    assert lines["sink", 0, "kind"] == 3
    assert lines["sink", 1, "kind"] == 5
    assert lines["sink", 1, "options", "k"] == 7
    assert lines["step", 0] == 8
    assert nearest_line(lines, ("sink", 1, "path")) == 4
    assert nearest_line(lines, ("nowhere",)) is None
