"""The columns of a JSON Schema, and of classes that have one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest

from penstock.errors import ConfigurationError
from penstock.spark.payload import from_json_schema, from_model, parse_ddl


class State(Enum):
    OPEN = "open"
    PAID = "paid"


class PydanticItem(pydantic.BaseModel):
    sku: str
    qty: int = 1


class PydanticOrder(pydantic.BaseModel):
    id: int
    total: Decimal
    state: State
    kind: Literal["a", "b"]
    items: list[PydanticItem]
    tags: dict[str, float] = {}
    at: datetime
    day: date | None
    paid: bool | None = None
    either: int | str = 0
    best: PydanticItem | None = None
    price: Annotated[Decimal, pydantic.Field(max_digits=10, decimal_places=2)] | None = None
    ratio: float | str = 0


class StructItem(msgspec.Struct):
    sku: str
    qty: int = 1


class StructOrder(msgspec.Struct):
    id: int
    total: Decimal
    state: State
    kind: Literal["a", "b"]
    items: list[StructItem]
    at: datetime
    day: date | None
    raw: bytes
    tags: dict[str, float] = {}
    paid: bool | None = None
    either: int | str = 0
    best: StructItem | None = None
    local: Annotated[datetime, msgspec.Meta(tz=False)] | None = None
    pair: tuple[int, float] = (1, 2)
    level: Literal[1, 2] = 1
    more: Any = None
    renamed: uuid.UUID | None = msgspec.field(name="other-name", default=None)


@dataclass
class DataOrder:
    id: int
    names: list[str]


class DictOrder(TypedDict, total=False):
    id: int
    name: str


class ArrayOrder(msgspec.Struct, array_like=True):
    id: int


class StructTree(msgspec.Struct):
    children: list[StructTree]


class Tree(pydantic.BaseModel):
    children: list[Tree]


NOT_A_MODEL = 5

_ITEM = "struct<sku:string not null, qty:bigint>"


def test_a_pydantic_model_gives_its_fields() -> None:
    assert from_model(f"{__name__}:PydanticOrder").equals(
        parse_ddl(
            f"id bigint not null, total decimal(38,18) not null, state string not null, kind string not null, items array<{_ITEM}> not null,"
            f"tags map<string,double>, at timestamp not null, day date, paid boolean, either string, best {_ITEM}, price decimal(10,2), ratio string"
        )
    )


def test_a_msgspec_struct_gives_its_fields() -> None:
    assert from_model(f"{__name__}:StructOrder").equals(
        parse_ddl(
            f"id bigint not null, total decimal(38,18) not null, state string not null, kind string not null, items array<{_ITEM}> not null,"
            f"at timestamp not null, day date, raw binary not null, tags map<string,double>, paid boolean, either string, best {_ITEM},"
            "local timestamp_ntz, pair array<double>, level bigint, more string, `other-name` string"
        )
    )


def test_a_typed_dict_gives_its_fields() -> None:
    assert from_model(f"{__name__}:DictOrder").equals(parse_ddl("id bigint, name string"))


def test_a_dataclass_gives_its_fields() -> None:
    assert from_model(f"{__name__}:DataOrder").equals(parse_ddl("id bigint not null, names array<string> not null"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("PydanticOrder", "must be written as 'package.module:Class'"),
        ("no.such.module:X", "cannot be imported here"),
        (f"{__name__}:Missing", "cannot be imported here"),
        (f"{__name__}:NOT_A_MODEL", "cannot list its fields"),
        (f"{__name__}:State", "must be a pydantic model"),
        (f"{__name__}:ArrayOrder", "must be a pydantic model"),
        (f"{__name__}:StructTree", "StructTree is recursive"),
        (f"{__name__}:Tree", "is recursive"),
    ],
)
def test_what_is_no_model_is_refused(path: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        from_model(path)


@pytest.mark.parametrize(
    ("node", "ddl"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["string", "null"], "format": "date"}, "date"),
        ({"type": "string", "format": "decimal"}, "decimal(38,18)"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2]}, "bigint"),
        ({"const": 1.5}, "double"),
        ({"enum": [1, "a"]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "string"),
        ({"type": "array"}, "array<string>"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, "array<array<boolean>>"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}], "items": False}, "array<double>"),
        ({"type": "object"}, "map<string,string>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"type": "object", "additionalProperties": False}, "map<string,string>"),
        ({"properties": {"x": {"type": "integer"}}, "required": ["x"]}, "struct<x:bigint not null>"),
        (
            {
                "oneOf": [
                    {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
                    {"properties": {"y": {"type": "string"}}},
                ]
            },
            "struct<x:bigint, y:string>",
        ),
        (
            {"allOf": [{"$ref": "#/$defs/base~1one"}, {"properties": {"y": {"type": "string"}}}]},
            "struct<x:bigint,y:string>",
        ),
        ({"allOf": [{"$ref": "#/$defs/base~1one"}]}, "struct<x:bigint>"),
        ({"type": "null"}, "string"),
        ({"title": "anything"}, "string"),
        (True, "string"),
    ],
)
def test_each_word_of_json_schema(node: object, ddl: str) -> None:
    document = {
        "type": "object",
        "properties": {"a": node},
        "$defs": {"base/one": {"properties": {"x": {"type": "integer"}}}},
    }
    assert from_json_schema(document).equals(parse_ddl(f"a {ddl}"))


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"$ref": "#/$defs/none"}, "#/properties/a: '#/\\$defs/none' does not exist"),
        ({"$ref": "http://example.org/x"}, "'http://example.org/x' does not exist"),
        ({"type": "thing"}, "#/properties/a: unknown type 'thing'"),
        ({"type": "array", "items": 5}, "#/properties/a/items: expected an object, got 5"),
        ({"not": {"type": "string"}}, "cannot derive a type"),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "supported only for objects"),
    ],
)
def test_what_cannot_be_understood_is_shown(node: object, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        from_json_schema({"type": "object", "properties": {"a": node}})


def test_a_document_without_properties_is_refused() -> None:
    for document in ({"type": "object"}, {"type": "string"}, {}):
        with pytest.raises(ConfigurationError, match="with properties"):
            from_json_schema(document)
    with pytest.raises(ConfigurationError, match="same name in Spark"):
        from_json_schema({"properties": {"a": True, "A": True}})


def test_the_types_are_those_of_spark() -> None:
    assert from_json_schema({"properties": {"a": {"type": "string", "format": "date-time"}}}).field(
        "a"
    ).type == pa.timestamp("us", "UTC")
