"""Reads settings from environment variables: PENSTOCK__TABLE__KEY, or PENSTOCK__TABLE__PROVIDER__KEY."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import SettingsError
from penstock.settings.masking import READABLE_FROM_FILE, is_secret
from penstock.settings.origin import Given, Origin

PREFIX: Final = "PENSTOCK__"
CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"


def read(environment: Mapping[str, str]) -> list[Given]:
    """Return every setting that the environment gives; raise SettingsError for a name that cannot be one."""
    found = []
    for variable in sorted(environment):
        if not variable.upper().startswith(PREFIX):
            continue
        path = tuple(variable[len(PREFIX) :].lower().split("__"))
        if len(path) not in (2, 3) or not all(path):
            raise SettingsError(
                f"environment variable {variable} is no setting: write {PREFIX}<TABLE>__<KEY>, such as "
                f"{PREFIX}TASK_QUEUE__URL, or {PREFIX}<TABLE>__<PROVIDER>__<KEY>"
            )
        found.append(Given(path, environment[variable], Origin("environment", variable)))
    return found


def guessed(key: str, text: str) -> Any:
    """Return the value that a text stands for where no type is known: as TOML reads it, else the text itself.

    What may be a secret stays a text: a password of digits is no number.
    """
    if is_secret(key) or key in READABLE_FROM_FILE or key.endswith("_file"):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text
