"""What `--results` means: a back-end that the settings know, or a place of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.plugins import RESULT_BACKENDS, suggestion
from penstock.settings import ResultBackendSettings, Settings

_POSTGRES = ("postgresql://", "postgres://")


def result_settings(given: str | None, settings: Settings) -> ResultBackendSettings:
    """Return the back-end of a folder, a `postgresql://` or `s3://` address, or of a name; by default the settings'."""
    if given is not None and given.startswith(_POSTGRES):
        return ResultBackendSettings("postgres", options={"dsn": given})
    if given is not None and "://" in given:
        return ResultBackendSettings("s3", options={"url": given})
    if given is not None and ("/" in given or given.startswith(".")):
        return ResultBackendSettings("fs", root=str(Path(given).absolute()))
    found = settings.result_backend
    if given is not None and given != found.provider:
        if given not in RESULT_BACKENDS:
            raise ConfigurationError(
                f"--results {given!r} is not a back-end; {suggestion(given, RESULT_BACKENDS.names())}"
            )
        prefix = f"result_backend.{given}."
        own = {item.name.removeprefix(prefix): item.value for item in settings.all if item.name.startswith(prefix)}
        found = replace(found, provider=given, options=own)
    # Tasks may run in another folder than this process.
    return replace(found, root=str(Path(found.root).absolute()))
