"""The JSON Schema of penstock.toml, for editors."""

from __future__ import annotations

from typing import Any, Final

from penstock.settings.masking import READABLE_FROM_FILE
from penstock.settings.settings import RESULT_BACKENDS, TASK_QUEUES
from penstock.settings.tables import TABLES, Key

_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}
_SUMMARIES: Final = {"task_queue": "where tasks wait", "result_backend": "where results are kept"}


def json_schema() -> dict[str, Any]:
    """Return the schema; the providers in it are those that are installed."""
    names = {"task_queue": TASK_QUEUES.names(), "result_backend": RESULT_BACKENDS.names()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "penstock.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {table: _table(table, keys, names[table]) for table, keys in TABLES.items()},
    }


def _table(table: str, keys: dict[str, Key] | Any, providers: list[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {name: _key(key) for name, key in keys.items()}
    properties["provider"]["examples"] = providers
    for name in keys:
        if name in READABLE_FROM_FILE:
            properties[f"{name}_file"] = {"type": "string", "description": f"a file that holds the {name} in one line"}
    for provider in providers:
        description = f"what only the provider {provider} knows"
        properties[provider] = {"type": "object", "description": description, "additionalProperties": True}
    return {
        "type": "object",
        "description": _SUMMARIES[table],
        "additionalProperties": False,
        "properties": properties,
        # One place at a time: url or url_file.
        "allOf": [{"not": {"required": [name, f"{name}_file"]}} for name in keys if name in READABLE_FROM_FILE],
    }


def _key(key: Key) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _TYPES[key.type], "default": key.default, "description": key.meaning}
    if key.type is str:
        found["minLength"] = 1
    if key.minimum is not None:
        found["minimum"] = key.minimum
    return found
