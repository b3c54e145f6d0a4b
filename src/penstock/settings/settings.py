"""Settings: the tables of penstock.toml, where their values come from, and which one holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.errors import SettingsError
from penstock.plugins import RESULT_BACKENDS, TASK_QUEUES, suggestion
from penstock.settings.binding import Document, bind, check_known, hints_of, parse_text, plain, read_line
from penstock.settings.masking import READABLE_FROM_FILE, is_secret, masked, masked_options

FILE_NAME: Final = "penstock.toml"
_PREFIX: Final = "PENSTOCK__"
_CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"

# --- the tables -----------------------------------------------------------------------------------


class _Masked:
    """Shows its values as `config show` does: without secrets."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in masked_options(vars(self)).items())
        return f"{type(self).__name__}({shown})"


def _text(meaning: str) -> Meta:
    return Meta(min_length=1, pattern=r"\S", description=meaning)


@dataclass(frozen=True, repr=False)
class TaskQueueSettings(_Masked):
    """The table `[task_queue]`; `options` is the sub-table named after the provider."""

    provider: Annotated[str, _text("the provider of the task queue: redis, stub, or the name of a plug-in")] = "redis"
    url: Annotated[str, _text("the URL of the task queue's server")] = "redis://localhost:6379/0"
    idle_ms: Annotated[
        int, Meta(ge=1, description="how long a task stays with a worker that has stopped renewing its lease")
    ] = 60_000
    max_retry: Annotated[
        int, Meta(ge=0, description="how often a failed task is retried before it is dead-lettered")
    ] = 3
    protection_file: Annotated[
        str | None, Meta(description="the file of the keys that sign or encrypt payloads; none by default")
    ] = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, repr=False)
class ResultBackendSettings(_Masked):
    """The table `[result_backend]`; `options` is the sub-table named after the provider."""

    provider: Annotated[
        str, _text("the provider of the result back-end: fs, postgres, s3, or the name of a plug-in")
    ] = "fs"
    root: Annotated[str, _text("the folder of the file system back-end")] = ".penstock/results"
    compress: Annotated[bool, Meta(description="whether the file system back-end compresses files with gzip")] = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


TABLES: Final[Mapping[str, type[TaskQueueSettings | ResultBackendSettings]]] = {
    "task_queue": TaskQueueSettings,
    "result_backend": ResultBackendSettings,
}
_PROVIDERS: Final = {"task_queue": TASK_QUEUES, "result_backend": RESULT_BACKENDS}
_SUMMARIES: Final = {"task_queue": "where tasks wait", "result_backend": "where results are stored"}


def keys_of(table: str) -> dict[str, Any]:
    """Return the keys of a table, with their defaults."""
    return {item.name: item.default for item in fields(TABLES[table]) if item.name != "options"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of penstock.toml, for editors; the providers in it are those that are installed."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        "type": "object",
        "additionalProperties": False,
        "properties": {table: _table_schema(table) for table in TABLES},
    }


def _table_schema(table: str) -> dict[str, Any]:
    kind = TABLES[table]
    properties = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
    del properties["options"]
    readable = [name for name in properties if name in READABLE_FROM_FILE]
    properties["provider"]["examples"] = _PROVIDERS[table].names()
    for name in readable:
        properties[f"{name}_file"] = {"type": "string", "description": f"a file whose only line is the {name}"}
    for provider in _PROVIDERS[table].names():
        description = f"options of the provider {provider}"
        properties[provider] = {"type": "object", "description": description, "additionalProperties": True}
    return {
        "type": "object",
        "description": _SUMMARIES[table],
        "additionalProperties": False,
        "properties": properties,
        # One place at a time: url or url_file.
        "allOf": [{"not": {"required": [name, f"{name}_file"]}} for name in readable],
    }


# --- where a value comes from ---------------------------------------------------------------------


@dataclass(frozen=True)
class SettingOrigin:
    """Where a value was written, as precisely as it is known."""

    source: Literal["default", "file", "environment", "flag"]
    place: str = ""

    def __str__(self) -> str:
        return f"environment variable {self.place}" if self.source == "environment" else self.place or self.source


@dataclass(frozen=True)
class Given:
    """A value given for `table.key` or `table.provider.key`, and where."""

    path: tuple[str, ...]
    value: Any
    origin: SettingOrigin

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.path)


def flag(name: str, value: str, spelled: str | None = None) -> Given:
    """Return what the user gave for `table.key` on the command line, spelled as `--set` or as a flag of its own."""
    path = tuple(name.split("."))
    if len(path) not in (2, 3) or not all(path):
        raise SettingsError(f"--set {name}: write --set <table>.<key>=<value>, such as --set task_queue.idle_ms=5000")
    return Given(path, value, SettingOrigin("flag", spelled or f"--set {name}"))


def _of_environment(variables: Mapping[str, str]) -> Iterator[Given]:
    for variable in sorted(variables):
        if not variable.upper().startswith(_PREFIX):
            continue
        path = tuple(variable[len(_PREFIX) :].lower().split("__"))
        if len(path) not in (2, 3) or not all(path):
            raise SettingsError(
                f"environment variable {variable} is not a setting: write {_PREFIX}<TABLE>__<KEY>, such as "
                f"{_PREFIX}TASK_QUEUE__URL, or {_PREFIX}<TABLE>__<PROVIDER>__<KEY>"
            )
        yield Given(path, variables[variable], SettingOrigin("environment", variable))


def _of_file(path: Path | None) -> Iterator[Given]:
    if path is None:
        return
    document = Document.read(path)
    for name, value in _values(document.content, ()):
        yield Given(name, value, SettingOrigin("file", document.place(name)))


def _values(table: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        name = (*above, key)
        # The first two levels are our tables; a third one belongs to a provider, which gets what is below unchanged.
        if isinstance(value, dict) and len(name) <= 2:
            yield from _values(value, name)
            if not value and len(name) == 1:
                yield name, value
        else:
            yield name, value


def _find_file(file: str | os.PathLike[str] | None, variables: Mapping[str, str]) -> Path | None:
    """Return the file to read; one that was named must exist."""
    named = file if file is not None else variables.get(_CONFIG_VARIABLE)
    if named is None or named == "":
        return Path(FILE_NAME) if Path(FILE_NAME).exists() else None
    path = Path(named)
    if not path.is_file():
        where = "" if file is not None else f"environment variable {_CONFIG_VARIABLE}: "
        raise SettingsError(f"{where}the settings file {path} does not exist")
    return path


# --- what holds -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Setting:
    """One value, with its dotted name and its origin; `shown` is the value as it may be shown."""

    name: str
    value: Any
    origin: SettingOrigin

    @property
    def shown(self) -> Any:
        """The value without secrets."""
        return masked(self.name.rpartition(".")[2], self.value)

    def __repr__(self) -> str:
        return f"Setting({self.name}={self.shown!r}, from {self.origin})"


@dataclass(frozen=True)
class Settings:
    """The settings of Penstock, checked; `all` lists each value with its origin."""

    task_queue: TaskQueueSettings = field(default_factory=TaskQueueSettings)
    result_backend: ResultBackendSettings = field(default_factory=ResultBackendSettings)
    all: tuple[Setting, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Iterable[Given] = (),
    ) -> Settings:
        """Read the settings: flags before the environment, the environment before the file, the file before defaults.

        The file is `file`, else what the variable PENSTOCK_CONFIG names, else `penstock.toml` in the working directory,
        if there is one. `environment` stands for the environment of the process.

        Raises: SettingsError, in one line that names the place.
        """
        variables = os.environ if environment is None else environment
        chosen: dict[tuple[str, ...], Given] = {}
        for layer in (_of_file(_find_file(file, variables)), _of_environment(variables), flags):
            chosen |= _checked_layer(layer)
        tables: dict[str, Any] = {}
        listed: list[Setting] = []
        for table, kind in TABLES.items():
            keys = {key: chosen.get((table, key)) or _default(table, key) for key in keys_of(table)}
            own = [given for path, given in chosen.items() if path[0] == table and len(path) == 3]
            listed += [Setting(given.name, given.value, given.origin) for given in (*keys.values(), *own)]
            options = {given.path[2]: given.value for given in own if given.path[1] == keys["provider"].value}
            tables[table] = kind(**{key: given.value for key, given in keys.items()}, options=options)
        return cls(**tables, all=tuple(listed))


def _default(table: str, key: str) -> Given:
    return Given((table, key), keys_of(table)[key], SettingOrigin("default"))


def _checked_layer(layer: Iterable[Given]) -> dict[tuple[str, ...], Given]:
    seen: dict[tuple[str, ...], Given] = {}
    for given in map(_checked, layer):
        if given.path in seen:
            raise SettingsError(
                f"{given.origin}: {given.name} is given twice, also by {seen[given.path].origin}; remove one of them"
            )
        seen[given.path] = given
    return seen


def _checked(given: Given) -> Given:
    """Return the value in its right type, under its right name."""
    table, *rest = given.path
    check_known(table, sorted(TABLES), f"{given.origin}: the table [{table}]")
    if rest:
        return _of_table(given, table, rest[0]) if len(rest) == 1 else _of_provider(given, table, rest[0], rest[1])
    if given.value != {}:
        raise SettingsError(f"{given.origin}: {table} must be a table: write [{table}]")
    return given


def _of_table(given: Given, table: str, key: str) -> Given:
    keys = keys_of(table)
    files = {f"{name}_file": name for name in keys if name in READABLE_FROM_FILE}
    if key in files:
        return _from_file(given, (table, files[key]))
    hint = f"; options of one provider belong in [{table}.<provider>]"
    check_known(key, [*keys, *files], f"{given.origin}: {given.name}", hint)
    kind = TABLES[table]
    value = _parsed(given, plain(hints_of(kind)[key]))
    bound = bind({key: value}, kind, where=lambda name: f"{given.origin}: {table}.{name}")
    return replace(given, value=getattr(bound, key))


def _of_provider(given: Given, table: str, provider: str, key: str) -> Given:
    if provider not in (plugins := _PROVIDERS[table]):
        known = suggestion(provider, plugins.names())
        raise SettingsError(f"{given.origin}: [{table}.{provider}] does not match a provider: {known}")
    target = key.removesuffix("_file")
    if target != key and target in READABLE_FROM_FILE:
        return _from_file(given, (table, provider, target))
    # What may be a secret stays a text: a password of digits is no number.
    is_text = is_secret(key) or key in READABLE_FROM_FILE or key.endswith("_file")
    return replace(given, value=_parsed(given, str if is_text else object))


def _parsed(given: Given, kind: object) -> Any:
    is_text = isinstance(given.value, str) and given.origin.source != "file"
    return parse_text(given.value, kind) if is_text else given.value


def _from_file(given: Given, path: tuple[str, ...]) -> Given:
    secret = read_line(given.value, f"{given.origin}: {given.name}")
    return Given(path, secret, SettingOrigin(given.origin.source, f"{given.origin.place} (file {given.value})"))
