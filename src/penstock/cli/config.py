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
from penstock.protection import Protection
from penstock.settings import Given, Setting, Settings, flag, json_schema
from penstock.shown import to_json
from penstock.sync.providers import make_result_backend, make_task_queue

_OURS = ("fs", "postgres", "s3")
_OUR_QUEUES = ("redis", "stub")
_STARTS_A_SERVER = "embedded:"
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
    """Check the settings, and that the providers and keys that they name can be used; makes no connections."""
    found = _load(config, settings, url)
    named = {setting.name: setting for setting in found.all}
    providers = [
        (TASK_QUEUES, named["task_queue.provider"]),
        (RESULT_BACKENDS, named["result_backend.provider"]),
    ]
    for plugins, provider in providers:
        if provider.value not in plugins:
            reason = f"unknown {plugins.noun} {provider.value!r}; {suggestion(provider.value, plugins.names())}"
            raise SettingsError(f"{provider.origin}: {reason}")
    for plugins, provider in providers:
        with _with_origin(provider):
            plugins.load(provider.value)
    _check_protection(named["task_queue.protection_file"])
    # Ours open no connection when they are made, and name the package that is missing. Others' may do anything.
    with _with_origin(named["task_queue.provider"]):
        if found.task_queue.provider in _OUR_QUEUES and not found.task_queue.url.startswith(_STARTS_A_SERVER):
            make_task_queue(found).close()
    with _with_origin(named["result_backend.provider"]):
        if found.result_backend.provider in _OURS:
            make_result_backend(found).close()
    print(to_json({"is_usable": True}) if as_json else "The settings are valid.")


def _check_protection(file: Setting) -> None:
    if file.value is not None:
        with _with_origin(file):
            Protection.from_file(file.value)


@command(app)
def schema() -> None:
    """Print the JSON Schema of penstock.toml, for editors."""
    print(json.dumps(json_schema(), indent=2))


@contextmanager
def _with_origin(setting: Setting) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        place = "" if setting.origin.source == "default" else f"{setting.origin}: "
        raise SettingsError(f"{place}{error}") from error


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
