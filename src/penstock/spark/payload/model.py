"""The columns of payloads that a class describes: a pydantic model, a msgspec Struct, a dataclass or a TypedDict."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa
from msgspec import inspect

from penstock.errors import ConfigurationError, summary_of, text_of
from penstock.spark.payload.json_schema import DECIMAL, from_json_schema
from penstock.spark.payload.merging import merged, usable
from penstock.spark.payload.schema import TIMESTAMP, TIMESTAMP_NTZ, check_names, list_of, map_of

_Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
_SIMPLE: dict[type, pa.DataType] = {
    inspect.NoneType: pa.null(), inspect.BoolType: pa.bool_(), inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(), inspect.StrType: pa.string(), inspect.BytesType: pa.binary(),
    inspect.ByteArrayType: pa.binary(), inspect.DateType: pa.date32(), inspect.DecimalType: DECIMAL,
}  # fmt: skip
_CONSTANTS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


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
        raise ConfigurationError(f"model {path!r}: its fields cannot be listed: {text_of(error)}") from error
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
    try:
        found: Any = importlib.import_module(module_name)
        for name in class_name.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise ConfigurationError(f"model {path!r} cannot be imported here: {summary_of(error)}") from error
    return found


def _pydantic_document(model: Any) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithDecimals(GenerateJsonSchema):
        """Tells a decimal from a number or text, and its size, which the usual document does not."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            size = {"maxDigits": schema.get("max_digits"), "decimalPlaces": schema.get("decimal_places")}
            return {"type": "string", "format": "decimal", **size}

    document = model.model_json_schema(schema_generator=WithDecimals)
    assert isinstance(document, dict)
    return document


# A document would do for the others too, but msgspec's own leaves out that a text is a moment.


def _fields(record: _Record, via: tuple[object, ...]) -> list[pa.Field]:
    if record.cls in via:
        raise ConfigurationError(f"model: {record.cls.__name__} contains itself, and Spark has no recursive types")
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
        return merged(_CONSTANTS.get(type(member.value), pa.string()) for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return merged(_CONSTANTS.get(type(value), pa.string()) for value in info.values)
    return _SIMPLE.get(type(info), pa.string())  # uuid, time and the like are texts in a payload


def _may_be_null(info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _may_be_null(info.type)
    if isinstance(info, inspect.UnionType):
        return info.includes_none
    return isinstance(info, inspect.NoneType | inspect.AnyType)
