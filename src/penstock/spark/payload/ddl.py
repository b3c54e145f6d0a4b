"""The columns of a payload: Spark's DDL text to an Arrow schema and back, and one type that holds the values of two.

The Arrow types are those of `pyspark.sql.pandas.types.to_arrow_schema(..., timezone="UTC")`: Spark compares the schema
of the first batch with its own, in names, order, types and nullability, and refuses the read when they differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa

from penstock.errors import ConfigurationError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_COMMENT_KEY = b"SPARK::metadata::json"  # where PySpark keeps the metadata of a field, the comment among them
_NAMES = (
    ("void", pa.null()), ("boolean", pa.bool_()), ("tinyint", pa.int8()), ("smallint", pa.int16()), ("int", pa.int32()),
    ("bigint", pa.int64()), ("float", pa.float32()), ("double", pa.float64()), ("string", pa.string()),
    ("binary", pa.binary()), ("date", pa.date32()), ("timestamp", TIMESTAMP), ("timestamp_ntz", TIMESTAMP_NTZ),
)  # fmt: skip
_SIMPLE = dict(_NAMES)
_ALIASES = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "timestamp_ltz": "timestamp",
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS_OF_SIZE = ("char", "character", "varchar")
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>(),:]))",
    re.DOTALL,
)
BIG_WHOLE = pa.decimal128(38, 0)  # whole numbers beyond 64 bits, as Spark infers them
_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), BIG_WHOLE]
_NUMBERS = [*_WHOLE, pa.float32(), pa.float64()]


def list_of(element: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the Arrow type of Spark's array, whose element is called `element`."""
    return pa.list_(pa.field("element", element, nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the Arrow type of Spark's map."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable))


def check_names(names: list[str], where: str) -> None:
    """Raise ConfigurationError for names that are equal in Spark, which ignores case by default."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            other = seen[name.lower()]
            raise ConfigurationError(
                f"{where}: the columns {other!r} and {name!r} have the same name in Spark, which ignores case"
            )
        seen[name.lower()] = name


# --- Arrow to DDL ---------------------------------------------------------------------------------


def to_ddl(schema: pa.Schema) -> str:
    """Return the schema as Spark's DDL, names in back-quotes.

    DDL cannot say that the elements of an array or the values of a map are never null: that is left out.
    Raises ConfigurationError for an Arrow type that Spark does not have, with the name of the column.
    """
    return ", ".join(_field_ddl(field, " ", field.name) for field in schema)


def type_ddl(kind: pa.DataType, where: str = "payload") -> str:
    """Return one type as Spark's DDL spells it; `where` names the column in the error."""
    for name, simple in _NAMES:
        if kind.equals(simple):
            return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_ddl(kind.value_type, f'{where}.element')}>"
    if pa.types.is_map(kind):
        return f"map<{type_ddl(kind.key_type, f'{where}.key')},{type_ddl(kind.item_type, f'{where}.value')}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(_field_ddl(field, ':', f'{where}.{field.name}') for field in kind)}>"
    raise ConfigurationError(f"column {where}: Spark has no type for Arrow's {kind}")


def _field_ddl(field: pa.Field, between: str, where: str) -> str:
    quoted = field.name.replace("`", "``")
    comment = _comment(field)
    said = "" if comment is None else " COMMENT '" + comment.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"`{quoted}`{between}{type_ddl(field.type, where)}{'' if field.nullable else ' NOT NULL'}{said}"


def _comment(field: pa.Field) -> str | None:
    known = json.loads((field.metadata or {}).get(_COMMENT_KEY, b"{}"))
    comment = known.get("comment")
    return comment if isinstance(comment, str) else None


# --- DDL to Arrow ---------------------------------------------------------------------------------


def parse_ddl(text: str) -> pa.Schema:
    """Return the Arrow schema of Spark's DDL, for example `id bigint NOT NULL, tags map<string,string>`.

    Raises ConfigurationError that shows the place which cannot be read.
    """
    reader = _DdlReader(text, list(_tokens(text)))
    if reader.word(0) == "struct" and reader.tokens[1].value == "<":
        kind = reader.type()
        fields = list(kind)
    else:
        fields = reader.fields(closing="")
    reader.end()
    if not fields:
        raise reader.wrong("a payload needs at least one column")
    return pa.schema(fields)


@dataclass(frozen=True)
class _Token:
    value: str
    kind: str
    start: int


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            start = len(text) - len(text[position:].lstrip())
            raise _unreadable(text, start, "invalid character")
        kind = str(match.lastgroup)
        yield _Token(match[kind], kind, match.start(kind))
        position = match.end()
    yield _Token("", "end", len(text))


def _unreadable(text: str, start: int, problem: str) -> ConfigurationError:
    rest = repr(text[start : start + 20]) if text[start:].strip() else "the end"
    return ConfigurationError(f"schema {text!r}: {problem}, at character {start + 1}: {rest}")


@dataclass
class _DdlReader:
    """Walks over the tokens of one DDL text."""

    text: str
    tokens: list[_Token]
    at: int = 0

    def word(self, ahead: int = 0) -> str:
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.value.lower() if token.kind == "word" else ""

    def take(self) -> _Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def took(self, value: str) -> bool:
        token = self.tokens[self.at]
        if token.kind in {"word", "sign"} and token.value.lower() == value:
            self.at += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.took(value):
            raise self.wrong(f"expected {value!r}")

    def wrong(self, problem: str, token: _Token | None = None) -> ConfigurationError:
        return _unreadable(self.text, (token or self.tokens[self.at]).start, problem)

    def end(self) -> None:
        if self.tokens[self.at].kind != "end":
            raise self.wrong("expected ',' or the end")

    def fields(self, closing: str) -> list[pa.Field]:
        found: list[pa.Field] = []
        if closing and self.took(closing):
            return found
        while True:
            start = self.tokens[self.at]
            found.append(self.field())
            if found[-1].name.lower() in {field.name.lower() for field in found[:-1]}:
                raise self.wrong(f"the name {found[-1].name!r} appears twice (Spark ignores case)", start)
            if not self.took(","):
                break
        if closing:
            self.expect(closing)
        return found

    def field(self) -> pa.Field:
        token = self.take()
        if token.kind not in {"word", "quoted"}:
            raise self.wrong("expected a column name", token)
        name = token.value[1:-1].replace("``", "`") if token.kind == "quoted" else token.value
        self.took(":")
        kind = self.type()
        nullable = not self.took("not")
        if not nullable:
            self.expect("null")
            if pa.types.is_null(kind):
                raise self.wrong("a void column is always null", token)
        metadata = None
        if self.took("comment"):
            metadata = {_COMMENT_KEY: json.dumps({"comment": self.literal()}).encode()}
        return pa.field(name, kind, nullable, metadata)

    def literal(self) -> str:
        token = self.take()
        if token.kind != "text":
            raise self.wrong("expected a quoted string", token)
        # Both ways to write a quote inside quotes: after a backslash, and twice.
        return re.sub(r"[\\'\"]([\\'\"])", r"\1", token.value[1:-1])

    def type(self) -> pa.DataType:
        token = self.take()
        name = token.value.lower() if token.kind == "word" else ""
        name = _ALIASES.get(name, name)
        if name in _SIMPLE:
            return _SIMPLE[name]
        build = self._composed(name)
        if build is None:
            if not name:
                raise self.wrong("expected a type", token)
            known = ", ".join([*_SIMPLE, "decimal(p,s)", "array<>", "map<,>", "struct<>"])
            raise self.wrong(f"the type {token.value!r} is not one of {known}", token)
        return build(token)

    def _composed(self, name: str) -> Callable[[_Token], pa.DataType] | None:
        if name in _DECIMALS:
            return self._decimal
        if name in _TEXTS_OF_SIZE:
            return self._text_of_size
        return {"array": self._array, "map": self._map, "struct": self._struct}.get(name)

    def _decimal(self, token: _Token) -> pa.DataType:
        numbers = self._numbers()
        precision, scale = (*numbers, *(10, 0)[len(numbers) :]) if len(numbers) <= 2 else (0, 0)
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.wrong("a decimal needs a precision from 1 to 38 and a scale of at most the precision", token)
        return pa.decimal128(precision, scale)

    def _text_of_size(self, token: _Token) -> pa.DataType:
        if len(self._numbers()) != 1:
            raise self.wrong(f"{token.value} needs its length, as in {token.value}(10)", token)
        return pa.string()  # a source gives texts of any length: Spark itself checks char and varchar when it writes

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if not self.took("("):
            return numbers
        while True:
            token = self.take()
            if not token.value.isdecimal():
                raise self.wrong("expected a whole number", token)
            numbers.append(int(token.value))
            if not self.took(","):
                break
        self.expect(")")
        return numbers

    def _array(self, _token: _Token) -> pa.DataType:
        self.expect("<")
        element = self.type()
        self.expect(">")
        return list_of(element)

    def _map(self, _token: _Token) -> pa.DataType:
        self.expect("<")
        key = self.type()
        self.expect(",")
        value = self.type()
        self.expect(">")
        return map_of(key, value)

    def _struct(self, _token: _Token) -> pa.DataType:
        self.expect("<")
        return pa.struct(self.fields(closing=">"))


# --- one type for the values of two ---------------------------------------------------------------


def merged(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that holds the values of all; of none it is void."""
    return reduce(merge, kinds, pa.null())


def merge(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds the values of both, which is string when no other does."""
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if left in _WHOLE and right in _WHOLE:
        return _WHOLE[max(_WHOLE.index(left), _WHOLE.index(right))]
    if left in _NUMBERS and right in _NUMBERS:
        return pa.float64()
    for same in (pa.types.is_list, pa.types.is_map, pa.types.is_struct):
        if same(left) and same(right):
            return _merge_nested(left, right)
    return pa.string()


def usable(kind: pa.DataType) -> pa.DataType:
    """Return the type with string in place of void and of structs without fields, which most sinks of Spark refuse."""
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and kind.num_fields == 0):
        return pa.string()
    if pa.types.is_list(kind):
        return list_of(usable(kind.value_type), nullable=kind.value_field.nullable)
    if pa.types.is_map(kind):
        return map_of(kind.key_type, usable(kind.item_type), nullable=kind.item_field.nullable)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(usable(field.type)) for field in kind])
    return kind


def _merge_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_list(left):
        nullable = left.value_field.nullable or right.value_field.nullable
        return list_of(merge(left.value_type, right.value_type), nullable=nullable)
    if pa.types.is_map(left):
        nullable = left.item_field.nullable or right.item_field.nullable
        return map_of(merge(left.key_type, right.key_type), merge(left.item_type, right.item_type), nullable=nullable)
    return pa.struct(_merge_fields(left, right))


def _merge_fields(left: pa.DataType, right: pa.DataType) -> list[pa.Field]:
    ours = {field.name: field for field in left}
    theirs = {field.name: field for field in right}
    fields = []
    for name in {**ours, **theirs}:
        both = [side[name] for side in (ours, theirs) if name in side]
        # What one side lacks may be missing, and so null.
        nullable = len(both) == 1 or any(field.nullable for field in both)
        fields.append(pa.field(name, merged(field.type for field in both), nullable))
    return fields
