"""The TOML file of a pipeline: its tables, profiles, variables and secrets, and its JSON Schema for editors."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from inspect import Parameter, signature
from types import NoneType
from typing import Any, get_args

import msgspec

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import SettingsError
from penstock.settings.binding import Document, Expansion, bind, check_known, hints_of, is_options, key_of, plain
from penstock.settings.masking import without_secrets
from penstock.spark.pipeline.sink_options import SINKS
from penstock.spark.pipeline.spec import Lineage, Pipeline, Source
from penstock.spark.pipeline.steps import SOURCE, STEPS, Rule

_DEFINED = "#/$defs/{name}"
_URL = frozenset(("url", "url_file"))

LISTS = {"rule": "rules", "step": "steps", "sink": "sinks"}  # names in a file, and in Python


def top_level() -> dict[str, Any]:
    """Return the keys above all tables of a file, with their types."""
    own = {*LISTS.values(), "source", "lineage", "secrets"}
    return {key: hint for key, hint in hints_of(Pipeline).items() if key not in own}


class SpecFile:
    """Turns a TOML document into a pipeline."""

    def __init__(self, document: Document, profile: str | None, environment: Mapping[str, str] | None = None) -> None:
        self._document = document
        self._expansion = Expansion(os.environ if environment is None else environment)
        profiles = document.content.pop("profile", {})
        if not isinstance(profiles, Mapping):
            raise SettingsError(f"{document.place(('profile',))}: write a profile as a table, [profile.<name>]")
        if profile is not None:
            check_known(profile, profiles, f"{document.name}: [profile.{profile}]")
            self._overlay(document.content, profiles[profile], (), ("profile", profile))

    @property
    def has_source_url(self) -> bool:
        """Whether the file, with its profile, names the server of the source."""
        source = self._document.content.get(SOURCE)
        return isinstance(source, Mapping) and not _URL.isdisjoint(source)

    def set_source_url(self, url: str) -> None:
        """Read the source from this server, whatever the file says."""
        source = self._document.content.get(SOURCE)
        if isinstance(source, Mapping):
            kept = {key: value for key, value in source.items() if key not in _URL}
            # A $ is part of the URL, and names no variable.
            self._document.content[SOURCE] = {**kept, "url": url.replace("${", "$${")}

    def pipeline(self) -> Pipeline:
        """Return the pipeline; raise SettingsError for the first mistake, without the values of secrets."""
        try:
            return self._made()
        except SettingsError as error:
            raise SettingsError(without_secrets(str(error), self._expansion.secrets)) from None

    def _made(self) -> Pipeline:
        content = self._document.content
        for key in content:
            known = [*top_level(), "source", "lineage", "spark", *LISTS, "profile"]
            files = [f"{each}_file" for each in top_level()] if key.endswith("_file") else []
            check_known(key, dict.fromkeys([*known, *files]), self._where(())(key))
        if SOURCE not in content:
            raise SettingsError(f"{self._document.name} needs the table [source]")
        given = {key: value for key, value in content.items() if key not in (*LISTS, SOURCE, "lineage")}
        made: dict[str, Any] = dict(self._expansion.table(given, Pipeline, self._where(())))  # type: ignore[call-overload]
        made[SOURCE] = self._bound(content[SOURCE], Source, (SOURCE,))
        if "lineage" in content:
            made["lineage"] = self._bound(content["lineage"], Lineage, ("lineage",))
        for key, name in LISTS.items():
            made[name] = [self._declared(key, table, number) for number, table in enumerate(self._tables(key))]
        made["secrets"] = tuple(self._expansion.secrets)
        return bind(made, Pipeline, where=self._where(()))

    def _tables(self, key: str) -> list[Any]:
        tables = self._document.content.get(key, [])
        if not isinstance(tables, list):
            place = self._document.place((key,))
            raise SettingsError(f"{place}: {key} must be written as [[{key}]], because there can be several")
        return tables

    def _declared(self, key: str, table: Any, number: int) -> Any:
        path = (key, number)
        if key == "rule":
            return self._bound(table, Rule, path)
        where = self._where(path)
        if not isinstance(table, Mapping):
            raise SettingsError(f"{where('')} must be a table")
        if key == "sink":
            kind = table.get("kind")
            if not isinstance(kind, str) or kind not in SINKS:
                fault = f"{where('')} needs the key 'kind', which" if kind is None else f"{where('kind')}={kind!r}"
                raise SettingsError(f"{fault} must be one of {', '.join(SINKS)}")
            return self._bound({name: each for name, each in table.items() if name != "kind"}, SINKS[kind], path)
        kinds = [kind for kind in STEPS if kind in table]
        if not kinds:
            for name in table:
                check_known(
                    name, dict.fromkeys(each for step in STEPS.values() for each in hints_of(step)), where(name)
                )
        if len(kinds) != 1:
            raise SettingsError(f"{where('')} needs one of the keys {', '.join(STEPS)}")
        return self._bound(table, STEPS[kinds[0]], path)

    def _bound(self, table: Any, kind: type, path: tuple[str | int, ...]) -> Any:
        where = self._where(path)
        return bind(self._expansion.table(table, kind, where), kind, where=where)

    def _where(self, path: tuple[str | int, ...]) -> Callable[[str], str]:
        number = f" {int(path[1]) + 1}" if path[1:] else ""
        named = f"[{path[0]}{number}]" if path else ""

        def where(key: str) -> str:
            if not path and not key:
                return self._document.name
            return f"{self._document.place((*path, *([key] if key else [])))}: {f'{named} {key}'.strip()}"

        return where

    def _overlay(self, below: Any, above: Any, path: tuple[str | int, ...], origin: tuple[str | int, ...]) -> None:
        """Override values of the file with those of a profile, and their line numbers too."""
        lines = self._document.lines
        if not isinstance(above, Mapping):
            raise SettingsError(f"{self._document.place(origin)}: [{'.'.join(map(str, origin))}] must be a table")
        for key, value in above.items():
            at, of = (*path, key), (*origin, key)
            if not path and key in LISTS:
                self._overlay_named(key, value, of)
            elif isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
                self._overlay(below[key], value, at, of)
            else:
                below[key] = value
                lines.update(
                    {(*at, *found[len(of) :]): line for found, line in lines.items() if found[: len(of)] == of}
                )
                below.pop(f"{key}_file", None)
                if key.endswith("_file"):
                    below.pop(key.removesuffix("_file"), None)

    def _overlay_named(self, key: str, above: Any, origin: tuple[str | int, ...]) -> None:
        """Override the steps, rules or sinks that a profile names; the name of a sink is its kind by default."""
        tables = self._tables(key)
        names = [table.get("name", table.get("kind")) if isinstance(table, Mapping) else None for table in tables]
        if not isinstance(above, Mapping):
            raise SettingsError(f"{self._document.place(origin)}: write [{'.'.join(map(str, origin))}.<name>] instead")
        for name, table in above.items():
            place = f"{self._document.place((*origin, name))}: {key} {name!r}"
            check_known(name, [each for each in names if each is not None], place)
            number = names.index(name)
            if isinstance(table, Mapping) and table.get("kind", tables[number].get("kind")) != tables[number].get(
                "kind"
            ):
                kept = {each: tables[number][each] for each in ("from", "where") if each in tables[number]}
                tables[number] = {"name": name, **kept}  # another kind of sink has other keys
            self._overlay(tables[number], table, (key, number), (*origin, name))


# --- for editors ----------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a pipeline file."""
    lists = {"rule": [_table(Rule)], "step": [_table(kind) for kind in STEPS.values()]}
    lists["sink"] = [_table(cls, kind=kind) for kind, cls in SINKS.items()]
    properties = {
        **_properties(Pipeline, top_level()),
        SOURCE: _table(Source, optional=("url",)),  # a command has other places for it
        "lineage": _table(Lineage),
        **{key: {"type": "array", "items": {"anyOf": kinds}} for key, kinds in lists.items()},
    }
    overlays = {key: {"type": "object"} for key in (SOURCE, "lineage", *LISTS)}
    profile = {"type": "object", "additionalProperties": False, "properties": {**properties, **overlays}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of Penstock",
        "type": "object",
        "additionalProperties": False,
        "properties": {**properties, "profile": {"type": "object", "additionalProperties": profile}},
        "required": [SOURCE, "sink"],
        "$defs": msgspec.json.schema_components([DeadLetterLimits], ref_template=_DEFINED)[1],
    }


def _table(kind: type, /, optional: Container[str] = (), **constant: str) -> dict[str, Any]:
    fixed = {key: {"const": value} for key, value in constant.items()}
    parameters = signature(kind).parameters.items()
    required = [name for name, each in parameters if each.default is Parameter.empty and name not in optional]
    # A required value may be in a separate file: dsn or dsn_file.
    either = [{"anyOf": [{"required": [name]}, {"required": [f"{name}_file"]}]} for name in required]
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "additionalProperties": False,
        "properties": {**fixed, **_properties(kind, hints_of(kind))},
        "required": list(constant),
        **({"allOf": either} if either else {}),
    }


def _properties(kind: type, hints: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {key_of(name): each.default for name, each in signature(kind).parameters.items()}
    made = {}
    for key, hint in hints.items():
        given = [part for part in get_args(hint) if part is not NoneType] if NoneType in get_args(hint) else [hint]
        (found,), _ = msgspec.json.schema_components(given[:1], ref_template=_DEFINED)
        if is_options(plain(hint)):
            found = {"type": "object"}
        elif found.get("type") != "string":
            # A list may be one string, limits may be "none", and anything may be a variable.
            is_free = found.get("type") == "array" or "$ref" in found
            found = {"anyOf": [found, {"type": "string", **({} if is_free else {"pattern": r"\$\{"})}]}
        if isinstance(defaults.get(key), str | int) and defaults[key] != "":
            found = {**found, "default": defaults[key]}
        made[key] = found
        made[f"{key}_file"] = {"type": "string", "description": f"a file whose only line is {key}"}
    return made
