"""The options by which every command that needs settings takes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import SettingsError
from penstock.settings import Given, Settings, flag

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The settings file; else $PENSTOCK_CONFIG, else penstock.toml, if there is one."
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting, above file and environment: --set task_queue.idle_ms=5000. May be repeated."
    ),
]


def load_settings(file: Path | None, settings: list[str] | None, flags: Iterable[Given] = ()) -> Settings:
    """Return the settings; `flags` are what the command's own flags gave, as `penstock.settings.flag()` makes them."""
    given = [_parsed(item) for item in settings or []]
    return Settings.load(file, flags=[*given, *flags])


def _parsed(item: str) -> Given:
    name, equals, value = item.partition("=")
    if not equals:
        raise SettingsError("--set takes <table>.<key>=<value>, such as --set task_queue.idle_ms=5000")
    return flag(name.strip(), value)
