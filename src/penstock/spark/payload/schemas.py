"""The columns of payloads that a JSON Schema, a class or only a sample describes.

A class is a pydantic model, a msgspec Struct, a dataclass or a TypedDict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from penstock.errors import ConfigurationError, text_of
from penstock.spark.payload.ddl import BIG_WHOLE, TIMESTAMP, TIMESTAMP_NTZ, check_names, list_of, map_of, merged, usable
from penstock.spark.payload.decoding import Form
from penstock.spark.runtime.code_shipping import imported

_Document = Mapping[str, Any]
DECIMAL = pa.decimal128(38, 18)  # what Spark takes for a decimal of unknown size
_SIMPLE = {"null": pa.null(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP, "decimal": DECIMAL}
_CONSTANTS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
_MODEL_TYPES: dict[type, pa.DataType] = {
    inspect.NoneType: pa.null(), inspect.BoolType: pa.bool_(), inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(), inspect.StrType: pa.string(), inspect.BytesType: pa.binary(),
    inspect.ByteArrayType: pa.binary(), inspect.DateType: pa.date32(), inspect.DecimalType: DECIMAL,
}  # fmt: skip
_CONSTANT_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_DIGITS = 10**38
_SAMPLE_TYPES: dict[type, pa.DataType] = {
    type(None): pa.null(), bool: pa.bool_(), float: pa.float64(), str: pa.string(), bytes: pa.binary(),
    date: pa.date32(), datetime: TIMESTAMP,
}  # fmt: skip


# --- a JSON Schema ----------------------------------------------------------------------------------


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
            raise ConfigurationError(f"JSON schema, {where}: {ref} is recursive, which Spark does not support")
        node: object = self.root
        for part in ref.removeprefix("#").strip("/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not ref.startswith("#/") or not isinstance(node, dict) or name not in node:
                raise ConfigurationError(f"JSON schema, {where}: {ref!r} does not exist in this document")
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
                raise ConfigurationError(f"JSON schema, {where}: allOf is supported only for objects")
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
        raise ConfigurationError(f"JSON schema, {where}: cannot derive a type from not, if or $dynamicRef; add type")
    return ["string", "null"]  # only a title or a description: any value, which string holds as text


def _text_type(node: _Document) -> pa.DataType:
    if node.get("contentEncoding") == "base64":
        return pa.binary()
    if node.get("format") == "decimal" and node.get("decimalPlaces") is not None:
        return pa.decimal128(node.get("maxDigits") or DECIMAL.precision, node["decimalPlaces"])
    return _FORMATS.get(node.get("format", ""), pa.string())


# --- a class ----------------------------------------------------------------------------------------


def from_model(path: str) -> pa.Schema:
    """Return the columns of the objects of a class, given as "module:Class".

    A field without a default that may not be None is NOT NULL; a field with a default is null where it is missing.
    What may be of several types is the type that holds them all.
    Raises ConfigurationError when the class cannot be imported, or is none of those above.
    """
    model = _imported(path)
    if hasattr(model, "model_json_schema"):
        return from_json_schema(_pydantic_document(model))
    try:
        info = inspect.type_info(model)
    except Exception as error:
        raise ConfigurationError(f"model {path!r}: cannot list its fields: {text_of(error)}") from error
    if not isinstance(info, _Record) or (isinstance(info, inspect.StructType) and info.array_like):
        raise ConfigurationError(
            f"model {path!r} must be a pydantic model, a msgspec Struct, a dataclass or a TypedDict"
        )
    fields = _fields(info, ())
    check_names([field.name for field in fields], f"model {path!r}")
    return pa.schema(fields)


def _imported(path: str) -> Any:
    module_name, colon, class_name = path.partition(":")
    if not (module_name and colon and class_name):
        raise ConfigurationError(f"model {path!r} must be written as 'package.module:Class'")
    return imported(f"model {path!r}", path)


def _pydantic_document(model: Any) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithDecimals(GenerateJsonSchema):
        """Distinguishes a decimal from a number or text, and gives its size, which the usual document does not."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            size = {"maxDigits": schema.get("max_digits"), "decimalPlaces": schema.get("decimal_places")}
            return {"type": "string", "format": "decimal", **size}

    document = model.model_json_schema(schema_generator=WithDecimals)
    assert isinstance(document, dict)
    return document


# A document would do for the others too, but msgspec's own leaves out that a text is a moment.


def _fields(record: _Record, via: tuple[object, ...]) -> list[pa.Field]:
    if record.cls in via:
        raise ConfigurationError(f"model: {record.cls.__name__} is recursive, which Spark does not support")
    fields = []
    for member in record.fields:
        kind = usable(_type(member.type, (*via, record.cls)))
        fields.append(pa.field(member.encode_name, kind, _may_be_null(member.type) or not member.required))
    return fields


def _type(info: inspect.Type, via: tuple[object, ...]) -> pa.DataType:
    if isinstance(info, inspect.Metadata):
        return _type(info.type, via)
    if isinstance(info, inspect.UnionType):
        return merged(_type(choice, via) for choice in info.types)
    if isinstance(info, _Record):
        return pa.struct(_fields(info, via))
    if isinstance(info, inspect.DictType):
        return map_of(pa.string(), _type(info.value_type, via))
    if isinstance(info, inspect.TupleType | inspect.CollectionType):
        items = info.item_types if isinstance(info, inspect.TupleType) else [info.item_type]
        return list_of(merged(_type(item, via) for item in items))
    return _leaf(info)


def _leaf(info: inspect.Type) -> pa.DataType:
    if isinstance(info, inspect.DateTimeType):
        return TIMESTAMP_NTZ if info.tz is False else TIMESTAMP
    if isinstance(info, inspect.EnumType):
        return merged(_CONSTANT_TYPES.get(type(member.value), pa.string()) for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return merged(_CONSTANT_TYPES.get(type(value), pa.string()) for value in info.values)
    return _MODEL_TYPES.get(type(info), pa.string())  # uuid, time and the like are texts in a payload


def _may_be_null(info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _may_be_null(info.type)
    if isinstance(info, inspect.UnionType):
        return info.includes_none
    return isinstance(info, inspect.NoneType | inspect.AnyType)


# --- a sample ---------------------------------------------------------------------------------------


def infer(samples: Sequence[bytes], form: Form) -> pa.Schema:
    """Return the schema that holds all samples: fields in order of first appearance, all of them nullable.

    Whole numbers are bigint, objects struct; texts stay string, also those that look like a date. Fields whose types
    conflict are string. Samples that are no objects are left out.
    Raises ConfigurationError when no sample is left.
    """
    if form == "avro":
        raise ConfigurationError("Avro payloads do not contain field names: take the columns from the writer's schema")
    decode = msgspec.json.decode if form == "json" else msgspec.msgpack.decode
    kinds = []
    for sample in samples:
        try:
            record = decode(sample)
            kinds.append(_type_of(record if isinstance(record, dict) else None))
        except Exception:  # noqa: S112 - what is malformed here is malformed again when it is read, and reported there
            continue
    kind = merged(kind for kind in kinds if pa.types.is_struct(kind))
    if not pa.types.is_struct(kind) or kind.num_fields == 0:
        raise ConfigurationError(
            f"cannot infer columns: none of {len(samples)} samples is a {form} object with fields; set the "
            "schema, or start when the stream has entries"
        )
    fields = list(usable(kind))
    check_names([field.name for field in fields], "inferred schema")
    return pa.schema(fields)


def _type_of(value: object) -> pa.DataType:
    if isinstance(value, dict):
        # Other keys than texts are no names of fields: the value can be had as text.
        named = all(isinstance(name, str) for name in value)
        return pa.struct([(name, _type_of(member)) for name, member in value.items()]) if named else pa.string()
    if isinstance(value, list):
        return list_of(merged(map(_type_of, value)))
    if type(value) is int:
        return _type_of_whole(value)
    return _SAMPLE_TYPES.get(type(value), pa.string())


def _type_of_whole(value: int) -> pa.DataType:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    return BIG_WHOLE if abs(value) < _DIGITS else pa.string()
