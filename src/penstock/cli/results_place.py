"""What `--results` means: a back-end that the settings know, or a place of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.settings import ResultBackendSettings, Settings, flag

_POSTGRES = ("postgresql://", "postgres://")


def result_settings(given: str | None, config: Path | None = None) -> ResultBackendSettings:
    """Return the back-end of a folder, a `postgresql://` or `s3://` address, or of a name; by default the settings'."""
    if given is not None and given.startswith(_POSTGRES):
        return ResultBackendSettings("postgres", options={"dsn": given})
    if given is not None and "://" in given:
        return ResultBackendSettings("s3", options={"url": given})
    if given is not None and ("/" in given or given.startswith(".")):
        return ResultBackendSettings("fs", root=str(Path(given).absolute()))
    flags = [] if given is None else [flag("result_backend.provider", given, "--results")]
    found = Settings.load(config, flags=flags).result_backend
    # Tasks may run in another folder than this process.
    return replace(found, root=str(Path(found.root).absolute()))
