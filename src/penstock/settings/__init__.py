"""Penstock's settings: penstock.toml, the environment and flags. Nothing else in the library reads them."""

from penstock.settings.json_schema import json_schema
from penstock.settings.origin import Given, Origin
from penstock.settings.settings import Setting, Settings, flag
from penstock.settings.tables import ResultBackendSettings, TaskQueueSettings

__all__ = [
    "Given",
    "Origin",
    "ResultBackendSettings",
    "Setting",
    "Settings",
    "TaskQueueSettings",
    "flag",
    "json_schema",
]
