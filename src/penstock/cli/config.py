"""`penstock config`: shows, checks and describes the settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.cli.command import command, group, load_settings
from penstock.cli.options import FROM_SETTINGS, AsJson, ConfigFile, SetOptions, Url
from penstock.cli.shown import print_rows
from penstock.errors import ConfigurationError, SettingsError
from penstock.plugins import RESULT_BACKENDS, TASK_QUEUES, suggestion
from penstock.settings import Given, Setting, Settings, flag, json_schema
from penstock.shown import to_json
from penstock.sync.providers import make_result_backend

_OURS = ("fs", "postgres", "s3")
app = group("Show and check settings.")


@command(app)
def show(
    config: ConfigFile = None, settings: SetOptions = None, url: Url = FROM_SETTINGS, as_json: AsJson = False
) -> None:
    """Print every setting and where it comes from. Secrets are masked."""
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "setting": lambda row: row["name"],
        "value": lambda row: to_json(row["value"]),
        "from": lambda row: row["origin"]["place"] or row["origin"]["source"],
    }
    rows = [_entry(setting) for setting in _load(config, settings, url).all]
    print_rows(rows, columns, as_json=as_json)


@command(app)
def check(
    config: ConfigFile = None, settings: SetOptions = None, url: Url = FROM_SETTINGS, as_json: AsJson = False
) -> None:
    """Check the settings, and that the providers they name are installed and accept them; makes no connections."""
    found = _load(config, settings, url)
    providers = [
        (plugins, next(setting for setting in found.all if setting.name == f"{table}.provider"))
        for plugins, table in ((TASK_QUEUES, "task_queue"), (RESULT_BACKENDS, "result_backend"))
    ]
    for plugins, provider in providers:
        if provider.value not in plugins:
            reason = f"unknown {plugins.noun} {provider.value!r}; {suggestion(provider.value, plugins.names())}"
            raise SettingsError(f"{provider.origin}: {reason}")
    for plugins, provider in providers:
        with _with_origin(provider):
            plugins.load(provider.value)
    with _with_origin(providers[1][1]):
        # Ours open no connection when they are made, and name the package that is missing. Others' may do anything.
        if found.result_backend.provider in _OURS:
            make_result_backend(found).close()
    print(to_json({"is_usable": True}) if as_json else "The settings are valid.")


@command(app)
def schema() -> None:
    """Print the JSON Schema of penstock.toml, for editors."""
    print(json.dumps(json_schema(), indent=2))


@contextmanager
def _with_origin(provider: Setting) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise SettingsError(f"{provider.origin}: {error}") from error


def _load(config: Path | None, settings: list[str] | None, url: str) -> Settings:
    return load_settings(url, config, map(_parsed, settings or []))


def _parsed(item: str) -> Given:
    name, equals, value = item.partition("=")
    if not equals:
        raise SettingsError("--set needs <table>.<key>=<value>, such as --set task_queue.idle_ms=5000")
    return flag(name.strip(), value)


def _entry(setting: Setting) -> dict[str, Any]:
    origin = {"source": setting.origin.source, "place": setting.origin.place or None}
    return {"name": setting.name, "value": setting.shown, "origin": origin}
