"""Binds TOML to types, for penstock.toml and for pipelines; errors name the line, the key and what was expected."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.errors import ConfigurationError, SettingsError
from penstock.plugins import suggestion
from penstock.settings.masking import READABLE_FROM_FILE, is_secret, masked

_T = TypeVar("_T")
_Path = tuple[str | int, ...]
_LARGEST_FILE: Final = 65_536
_FILE: Final = "_file"
_FLAGS: Final = dict.fromkeys(("true", "yes", "1", "on"), True) | dict.fromkeys(("false", "no", "0", "off"), False)
# msgspec's messages and ours; any other message is passed on unchanged.
_REASONS: Final = (
    (r"Expected `int(?: \| null)?`,.*", "must be a whole number"),
    (r"Expected `float(?: \| null)?`,.*", "must be a number"),
    (r"Expected `str(?: \| null)?`,.*", "must be a string"),
    (r"Expected `bool(?: \| null)?`,.*", "must be true or false"),
    (r"Expected `array(?: \| null)?`,.*", "must be a list"),
    (r"Expected `object(?: \| null)?`,.*", "must be a table"),
    (r"Expected `(?:int|float)` >= (\S+)", r"must be \1 or more"),
    (r"Expected `(?:int|float)` <= (\S+)", r"must be \1 or less"),
    (r"Object missing required field `(.*)`", r"needs the key '\1'"),
    (r"Object contains unknown field `(.*)`", r"has an unknown key '\1'"),
    (r"Expected `str` (?:of length >= 1|matching regex '\\\\S')", "must not be empty"),
)
_AT: Final = re.compile(r" - at `\$(.*)`$")
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_MULTI_LINE: Final = re.compile(r'"""|\'\'\'')
# $${ is a literal ${; ${NAME} and ${NAME:-default} are variables; any other ${ is a mistake.
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_]\w*)(?::-([^}]*))?\})?")
_SECRET_VARIABLE: Final = re.compile(r"pass|key|secret|token|cred", re.IGNORECASE)

# --- tables become values -------------------------------------------------------------------------


def bind(table: object, kind: type[_T], *, where: Callable[[str], str]) -> _T:
    """Return the table as an instance of `kind`: a dataclass or msgspec Struct, whose annotations msgspec checks.

    `where(key)` names a key with its place ("penstock.toml:3: task_queue.idle_ms"), `where("")` the table itself.
    A key that is reserved in Python has a field with a trailing underscore: `from` is `from_`.

    In a nested table, unknown keys are refused only by a Struct with `forbid_unknown_fields`; bind it separately to
    get a suggestion.

    Raises: SettingsError for an unknown or missing key, a wrong value, and what `kind` raises as a ValueError.
    """
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where('')} must be a table, not {masked('', table)!r}")
    hints = hints_of(kind)
    for key in table:
        check_known(key, hints, where(key))
    for name, parameter in signature(kind).parameters.items():
        if parameter.default is Parameter.empty and key_of(name) not in table:
            raise SettingsError(f"{where('')} needs the key {key_of(name)!r}")
    names = {key_of(name): name for name in signature(kind).parameters}
    values = {names[key]: converted(key, value, hints[key], where(key)) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise SettingsError(f"{where('')}: {error}") from None


def hints_of(kind: type) -> dict[str, Any]:
    """Return the type of each key."""
    return {key_of(name): hint for name, hint in get_type_hints(kind, include_extras=True).items()}


def key_of(name: str) -> str:
    """Return how a file spells a field."""
    return name.removesuffix("_")


class Checked:
    """A base of frozen dataclasses that are created in Python as well: their values are checked in the same way."""

    def __post_init__(self) -> None:
        """Raise SettingsError for a value of the wrong type; a single string is accepted as a list of one."""
        hints = hints_of(type(self))
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            key = key_of(name)
            object.__setattr__(self, name, converted(key, getattr(self, name), hints[key], key))


def converted(key: str, value: object, hint: Any, name: str) -> Any:
    """Return the value in the type of a hint; raise SettingsError with the name for one that does not fit.

    A string may stand for a list of one, a declaration for a tuple of one, and options may be numbers or nested.
    """
    kind = plain(hint)
    declared = _declared(kind)
    if declared:
        return _instances(value, declared, name, is_tuple=get_origin(kind) is tuple)
    if get_origin(kind) is tuple and isinstance(value, str):
        value = (value,)
    elif is_options(kind) and isinstance(value, Mapping):
        value = dict(_flat(value, name))
    try:
        value = kind.of(value) if hasattr(kind, "of") else value
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SettingsError(_explained(str(error), key, value, kind, name)) from None
    except ConfigurationError as error:
        raise SettingsError(f"{name}: {error}") from None


def plain(hint: Any) -> Any:
    """Return a type without its limits and without `| None`."""
    if get_origin(hint) is Annotated:
        return plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        left = [part for part in get_args(hint) if part is not NoneType]
        return plain(left[0]) if len(left) == 1 else hint
    return hint


def is_options(kind: Any) -> bool:
    """Return whether a type is a table of strings whose keys another library defines."""
    return get_origin(kind) is not None and get_args(kind) == (str, str)


def _declared(kind: Any) -> tuple[type, ...]:
    """Return those of our classes that a value may have; none for a type that msgspec knows."""
    inner = plain(get_args(kind)[0]) if get_origin(kind) is tuple else kind
    found = get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,)
    return found if all(isinstance(each, type) and issubclass(each, Checked) for each in found) else ()


def _instances(value: object, kinds: tuple[type, ...], name: str, *, is_tuple: bool) -> Any:
    values = value if isinstance(value, list | tuple) else (value,)
    for each in values:
        if each is not None and not isinstance(each, kinds):
            known = ", ".join(kind.__name__ for kind in kinds)
            raise SettingsError(f"{name}: {each!r} is not one of {known}")
    return tuple(values) if is_tuple else value


def _flat(table: Mapping[str, object], name: str, before: str = "") -> Iterator[tuple[str, str]]:
    # TOML makes tables of a key with dots that is not quoted, such as spark.executor.memory.
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, name, f"{before}{key}.")
        elif isinstance(value, str | int | float):
            yield f"{before}{key}", str(value).lower() if isinstance(value, bool) else str(value)
        else:
            shown = masked(key, value)
            raise SettingsError(f"{name}.{before}{key}={shown!r} must be a string, a number, true or false")


def _explained(said: str, key: str, value: object, kind: Any, name: str) -> str:
    at = _AT.search(said)
    if at is None:
        name = f"{name}={masked(key, value)!r}"
    else:
        said, name = said[: at.start()], f"{name}{at[1]}"
    if said.startswith("Invalid enum value") and get_origin(kind) is Literal:
        return f"{name} must be one of {', '.join(map(str, get_args(kind)))}"
    for pattern, reason in _REASONS:
        if found := re.fullmatch(pattern, said):
            return f"{name} {found.expand(reason)}"
    return f"{name}: {said}"


def check_known(key: str, known: Iterable[str], name: str, hint: str = "") -> None:
    """Raise SettingsError for an unknown key, with a suggestion."""
    if key not in (names := list(known)):
        raise SettingsError(f"{name} is unknown: {suggestion(key, names)}{hint}")


def parse_text(text: str, kind: object) -> Any:
    """Return the value of type `kind` that a text from the environment or the command line stands for.

    A bool has many spellings; other types are parsed as TOML. A text that cannot be parsed is returned unchanged.
    """
    if kind is str:
        return text
    if kind is bool:
        return _FLAGS.get(text.strip().lower(), text)
    try:
        if kind is int:
            return int(text.replace("_", ""))
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


# --- values from the environment and from files ---------------------------------------------------


class Expansion:
    """Fills ${NAME} and <key>_file into tables; `secrets` are the strings that must not be shown."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.secrets: set[str] = set()

    def table(self, table: object, kind: type, where: Callable[[str], str]) -> object:
        """Return a table for bind() with everything filled in; `kind` says which keys there are."""
        if not isinstance(table, Mapping):
            return table
        hints, made = hints_of(kind), dict[str, Any]()
        for key, value in table.items():
            target = key.removesuffix(_FILE)
            if key not in hints and target in hints:
                if target in table:
                    raise SettingsError(f"{where(key)}: {target} is given as well; remove one of them")
                text = self._secret(value, where(key))
                made[target] = parse_text(text, str if _accepts_text(hints[target]) else plain(hints[target]))
                self.secrets.add(str(made[target]))  # a message about a wrong value shows it as it was parsed
            else:
                made[key] = self._filled(value, hints.get(key, object), where(key))
        return made

    def _filled(self, value: Any, hint: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return dict(self._options(value, name))
        if isinstance(value, list):
            return [self._filled(each, object, name) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        text = _VARIABLE.sub(lambda found: self._variable(found, name), value)
        return text if _accepts_text(hint) else parse_text(text, plain(hint))

    def _options(self, table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            target = key.removesuffix(_FILE)
            # Options of other libraries may end in _file; only what can be a secret is read from a file.
            if target != key and (target.lower() in READABLE_FROM_FILE or is_secret(target)):
                yield target, self._secret(value, f"{name}.{key}")
            else:
                yield key, self._filled(value, str, f"{name}.{key}")

    def _variable(self, found: re.Match[str], name: str) -> str:
        variable, default = found[1], found[2]
        if found[0] == "$${":
            return "${"
        if variable is None:
            raise SettingsError(f"{name}: write ${{NAME}} for an environment variable, and $${{ for a literal ${{")
        value = self._variables.get(variable)
        if not value and default is not None:  # as in a shell: an empty one counts as not set
            value = default
        if value is None:
            raise SettingsError(f"{name}: the environment variable {variable} is not set")
        if value and _SECRET_VARIABLE.search(variable):
            self.secrets.add(value)
        return value

    def _secret(self, path: object, name: str) -> str:
        text = read_line(path, name)
        self.secrets.add(text)
        return text


def _accepts_text(hint: Any) -> bool:
    kind = plain(hint)
    return kind in (str, object) or get_origin(kind) in (tuple, Literal)


def read_line(path: object, name: str) -> str:
    """Return the one line of a file, such as a secret; `name` is what errors call the key that names the file."""
    if not isinstance(path, str) or not path:
        raise SettingsError(f"{name} must be the path of a file")
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsError(f"{name}={path!r} cannot be read: {error.strerror}") from None
    except ValueError as error:  # also for NUL in the path
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SettingsError(f"{name}={path!r} cannot be read: {reason}") from None
    line = text.strip("\r\n")  # an editor ends a file with a line break
    if not line or "\n" in line or len(text) > _LARGEST_FILE:
        raise SettingsError(f"{name}={path!r} must contain exactly one line")
    return line


# --- files, and the lines in them -----------------------------------------------------------------


class Document:
    """A TOML text with the line numbers of its keys, which the parser does not report."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        try:
            self.content = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
            raise SettingsError(f"{name} is not valid TOML: {error}") from None
        self.lines = lines_of(text)

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file; raise SettingsError if that cannot be done."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(f"{path} cannot be read: {reason}") from None
        return cls(str(path), text)

    def place(self, path: _Path) -> str:
        """Return the file and the line of a key, or of the innermost table around it whose line is known."""
        line = nearest_line(self.lines, path)
        return self.name if line is None else f"{self.name}:{line}"


def lines_of(text: str) -> dict[_Path, int]:
    """Return the line of each key and header of a TOML text.

    The second `[[sink]]` has the path ("sink", 1). What stands in an inline table is not found.
    """
    found: dict[_Path, int] = {}
    counts: dict[_Path, int] = {}
    table: _Path = ()
    is_inside_text = False
    for number, line in enumerate(text.splitlines(), 1):
        was_inside_text = is_inside_text
        if len(_MULTI_LINE.findall(line)) % 2:
            is_inside_text = not is_inside_text
        if was_inside_text:
            continue
        if header := _HEADER.fullmatch(line):
            table = ()
            *above, last = _segments(header[2])
            for word in above:  # [sink.options] belongs to the last [[sink]] before it
                table = (*table, word)
                table += (counts[table],) if table in counts else ()
            table = (*table, last)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, *_segments(assignment[1])), number)
    return found


def nearest_line(lines: Mapping[_Path, int], path: _Path) -> int | None:
    """Return the line of a key, or of the innermost table around it whose line is known."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), None)


def _segments(dotted: str) -> tuple[str, ...]:
    return tuple(word.strip().strip("\"'") for word in dotted.split("."))
