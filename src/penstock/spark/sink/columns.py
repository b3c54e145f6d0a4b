"""Which column of a DataFrame becomes which part of an entry."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, VariantType

from penstock.errors import ConfigurationError

# What an entry has of its own: it is written anew, so the values of another entry are left behind.
_COORDINATES = ("id", "ms", "seq", "timestamp")
_ALIASES = {"data": ("data", "value"), "stream": ("stream", "topic")}


@dataclass(frozen=True)
class Columns:
    """The columns by their part; `payload` are those that become one object."""

    stream: str | None
    data: str | None
    key: str | None
    headers: str | None
    message_id: str | None
    fields: str | None
    payload: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, form: str | None, *, has_stream: bool) -> Columns:
        """Find the parts in a schema; `form` is None when the columns decide whether there is a payload to be made."""
        types = {field.name: field.dataType for field in schema.fields}
        stream = _one_of("stream", types, (StringType,))
        key = _typed("key", types, (StringType,))
        message_id = _typed("message_id", types, (StringType,))
        headers, fields = _map_of("headers", types, (StringType,)), _map_of("fields", types, (BinaryType, StringType))
        if stream is None and not has_stream:
            raise ConfigurationError(
                "say where to: give option stream, or a column `stream` with the name for each row"
            )
        rest = [name for name in types if name not in {stream, key, message_id, headers, fields}]
        is_object = form in ("json", "msgpack")
        data = None if is_object else _data(types, rest, form)
        is_object = is_object or (data is None and bool(rest) and not (fields and set(rest) <= set(_COORDINATES)))
        if is_object:
            _check_object(types, rest)
            return cls(stream, None, key, headers, message_id, fields, tuple(rest))
        if data is None and fields is None:
            raise ConfigurationError(
                "the rows have no payload: give a column `data`, or columns that become one object"
            )
        # Only beside a column that certainly came from a stream: a table of one's own may well have an `id`.
        left_behind = {data, *_COORDINATES} if data in (None, "data") else {data}
        for name in rest:
            if name not in left_behind:
                raise ConfigurationError(
                    f"column {name!r} has no place beside {data or 'fields'!r}: drop it, or write all columns as one "
                    "object with option payload=json or msgpack"
                )
        return cls(stream, data, key, headers, message_id, fields, ())


def _data(types: dict[str, DataType], rest: list[str], form: str | None) -> str | None:
    found = [name for name in _ALIASES["data"] if name in types]
    if len(found) > 1:
        raise ConfigurationError(
            "the columns data and value mean the same: drop one of them, or give option payload=json"
        )
    if not found:
        if form == "raw":
            raise ConfigurationError("option payload=raw needs a column `data` (binary or string)")
        return None
    name = found[0]
    if isinstance(types[name], BinaryType | StringType):
        is_alone = set(rest) <= {name}
        if name == "value" and form is None and not is_alone:
            return None  # one column among others, in a table of the user's own
        return name
    if name == "value" and form is None:
        return None
    raise _wrong(name, types[name], "binary or string; with option payload=json it becomes part of an object")


def _check_object(types: dict[str, DataType], rest: list[str]) -> None:
    if not rest:
        raise ConfigurationError("option payload: there is no column that could become part of the object")
    for name in rest:
        if isinstance(types[name], VariantType):
            raise _wrong(name, types[name], "a type that JSON can hold; turn it into text with to_json()")


def _one_of(part: str, types: dict[str, DataType], wanted: tuple[type[DataType], ...]) -> str | None:
    found = [name for name in _ALIASES[part] if name in types]
    if len(found) > 1:
        raise ConfigurationError(f"the columns {' and '.join(found)} mean the same: drop one of them")
    return _typed(found[0], types, wanted) if found else None


def _typed(name: str, types: dict[str, DataType], wanted: tuple[type[DataType], ...]) -> str | None:
    if name not in types:
        return None
    if not isinstance(types[name], wanted):
        names = " or ".join(kind.typeName() for kind in wanted)
        raise _wrong(
            name, types[name], f"{names}, since it stands beside the payload; rename it if it is a part of that"
        )
    return name


def _map_of(name: str, types: dict[str, DataType], values: tuple[type[DataType], ...]) -> str | None:
    if name not in types:
        return None
    given = types[name]
    if isinstance(given, MapType) and isinstance(given.keyType, StringType) and isinstance(given.valueType, values):
        return name
    shown = " or ".join(f"map<string,{kind.typeName()}>" for kind in values)
    raise _wrong(name, given, f"{shown}; rename it if it is a part of the payload")


def _wrong(name: str, given: DataType, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"column {name!r} is {given.simpleString()}; it must be {wanted}")
