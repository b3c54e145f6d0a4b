"""The columns of payloads that a JSON Schema describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.spark.payload.merging import merged, usable
from penstock.spark.payload.schema import TIMESTAMP, check_names, list_of, map_of

_Document = Mapping[str, Any]
DECIMAL = pa.decimal128(38, 18)  # what Spark takes for a decimal of unknown size
_SIMPLE = {"null": pa.null(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP, "decimal": DECIMAL}
_CONSTANTS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def from_json_schema(document: _Document) -> pa.Schema:
    """Return the columns of the objects that a JSON Schema describes.

    A required property that may not be null is NOT NULL. Texts of format date, date-time and decimal get these types,
    objects without known properties are maps, and what may be of several types is the type that holds them all.
    Raises ConfigurationError that names the place.
    """
    kind, _nullable = _DocumentWalk(document).type(document, "#", ())
    if not pa.types.is_struct(kind) or kind.num_fields == 0:
        raise ConfigurationError("JSON schema: a payload needs type 'object' with properties, one for each column")
    fields = list(usable(kind))
    check_names([field.name for field in fields], "JSON schema")
    return pa.schema(fields)


@dataclass(frozen=True)
class _DocumentWalk:
    """Walks over one document; `where` is the place for errors, `via` are the references that led there."""

    root: _Document

    def type(self, node: object, where: str, via: tuple[str, ...]) -> tuple[pa.DataType, bool]:
        """Return the type that a node describes, and whether it may be null."""
        if node is True or node == {}:
            return pa.string(), True
        if not isinstance(node, dict):
            raise ConfigurationError(f"JSON schema, {where}: expected an object, got {node!r}")
        if "$ref" in node:
            return self.type(*self._referred(str(node["$ref"]), where, via))
        if "allOf" in node:
            return self._all_of(node, where, via)
        choices = list(self._choices(node, where, via))
        return merged(kind for kind, _nullable in choices), any(nullable for _kind, nullable in choices)

    def _referred(self, ref: str, where: str, via: tuple[str, ...]) -> tuple[object, str, tuple[str, ...]]:
        if ref in via:
            raise ConfigurationError(f"JSON schema, {where}: {ref} contains itself, and Spark has no recursive types")
        node: object = self.root
        for part in ref.removeprefix("#").strip("/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not ref.startswith("#/") or not isinstance(node, dict) or name not in node:
                raise ConfigurationError(f"JSON schema, {where}: there is no {ref!r} in this document")
            node = node[name]
        return node, ref, (*via, ref)

    def _all_of(self, node: _Document, where: str, via: tuple[str, ...]) -> tuple[pa.DataType, bool]:
        fields: dict[str, pa.Field] = {}
        rest = {name: value for name, value in node.items() if name != "allOf"}
        parts = [*node["allOf"], *([rest] if "properties" in rest else [])]
        kinds = [self.type(part, where, via) for part in parts]
        if len(kinds) == 1:
            return kinds[0]
        for kind, _nullable in kinds:
            if not pa.types.is_struct(kind):
                raise ConfigurationError(f"JSON schema, {where}: allOf is understood for objects only")
            fields.update((field.name, field) for field in kind)
        return pa.struct(list(fields.values())), all(nullable for _kind, nullable in kinds)

    def _choices(self, node: _Document, where: str, via: tuple[str, ...]) -> Iterator[tuple[pa.DataType, bool]]:
        for word in ("anyOf", "oneOf"):
            if word in node:
                for choice in node[word]:
                    yield self.type(choice, where, via)
                return
        for name in _names_of_types(node, where):
            yield self._named(name, node, where, via), name == "null"

    def _named(self, name: str, node: _Document, where: str, via: tuple[str, ...]) -> pa.DataType:
        if name == "string":
            return _text_type(node)
        if name == "array":
            return self._array(node, where, via)
        if name == "object":
            return self._object(node, where, via)
        if name not in _SIMPLE:
            raise ConfigurationError(f"JSON schema, {where}: unknown type {name!r}")
        return _SIMPLE[name]

    def _array(self, node: _Document, where: str, via: tuple[str, ...]) -> pa.DataType:
        items = [*node.get("prefixItems", ())]
        if node.get("items", not items) is not False:
            items.append(node.get("items", True))
        # A null in a list spoils no row, whatever the schema says of it: DDL could not say otherwise either.
        return list_of(merged(self.type(item, f"{where}/items", via)[0] for item in items))

    def _object(self, node: _Document, where: str, via: tuple[str, ...]) -> pa.DataType:
        properties = node.get("properties")
        if not properties:
            more = node.get("additionalProperties", True)
            value = pa.string() if more is False else self.type(more, f"{where}/additionalProperties", via)[0]
            return map_of(pa.string(), value)
        required = set(node.get("required", ()))
        fields = []
        for name, member in properties.items():
            kind, nullable = self.type(member, f"{where}/properties/{name}", via)
            fields.append(pa.field(name, usable(kind), nullable or name not in required))
        return pa.struct(fields)


def _names_of_types(node: _Document, where: str) -> list[str]:
    names = node.get("type")
    if names is not None:
        return [names] if isinstance(names, str) else list(names)
    for word in ("enum", "const"):
        if word in node:
            values = node[word] if word == "enum" else [node[word]]
            return list(dict.fromkeys(_CONSTANTS.get(type(value), "string") for value in values))
    if "properties" in node or "additionalProperties" in node:
        return ["object"]
    if "items" in node or "prefixItems" in node:
        return ["array"]
    if any(word in node for word in ("not", "if", "$dynamicRef")):
        raise ConfigurationError(f"JSON schema, {where}: says what a value is not, but not of which type it is")
    return ["string", "null"]  # only a title or a description: any value, which string holds as text


def _text_type(node: _Document) -> pa.DataType:
    if node.get("contentEncoding") == "base64":
        return pa.binary()
    if node.get("format") == "decimal" and node.get("decimalPlaces") is not None:
        return pa.decimal128(node.get("maxDigits") or DECIMAL.precision, node["decimalPlaces"])
    return _FORMATS.get(node.get("format", ""), pa.string())
