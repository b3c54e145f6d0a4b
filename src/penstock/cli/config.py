"""`penstock config`: shows, checks and describes the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli.settings_options import ConfigFile, SetOptions, load_settings
from penstock.cli.shown import to_json
from penstock.errors import ConfigurationError, SettingsError
from penstock.plugins import RESULT_BACKENDS, TASK_QUEUES, suggestion
from penstock.settings import Setting, json_schema
from penstock.sync.providers import make_result_backend

_OURS = ("fs", "postgres", "s3")
config = typer.Typer(help="Show and check the settings.", no_args_is_help=True)


@config.command()
def show(
    file: ConfigFile = None,
    settings: SetOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every setting, and where it came from. Secrets are masked."""
    found = load_settings(file, settings)
    if as_json:
        print(to_json([_entry(setting) for setting in found.all], indent=2))
        return
    rows = [(setting.name, to_json(setting.shown)) for setting in found.all]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for (name, value), setting in zip(rows, found.all, strict=True):
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {setting.origin}")


@config.command()
def check(file: ConfigFile = None, settings: SetOptions = None) -> None:
    """Check the settings, and that what they name is installed and takes them; connects to nothing."""
    found = load_settings(file, settings)
    providers = [
        (plugins, next(setting for setting in found.all if setting.name == f"{table}.provider"))
        for plugins, table in ((TASK_QUEUES, "task_queue"), (RESULT_BACKENDS, "result_backend"))
    ]
    for plugins, provider in providers:
        if provider.value not in plugins:
            reason = f"there is no {plugins.noun} {provider.value!r}: {suggestion(provider.value, plugins.names())}"
            raise SettingsError(f"{provider.origin}: {reason}")
    for plugins, provider in providers:
        with _told(provider):
            plugins.load(provider.value)
    with _told(providers[1][1]):
        # Ours open no connection when they are made, and name the package that is missing. Others' may do anything.
        if found.result_backend.provider in _OURS:
            make_result_backend(found).close()
    print("The settings are usable.")


@config.command()
def schema() -> None:
    """Print the JSON Schema of penstock.toml, for editors."""
    print(json.dumps(json_schema(), indent=2))


@contextmanager
def _told(provider: Setting) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise SettingsError(f"{provider.origin}: {error}") from error


def _entry(setting: Setting) -> dict[str, Any]:
    origin = {"source": setting.origin.source, "place": setting.origin.place or None}
    return {"name": setting.name, "value": setting.shown, "origin": origin}
