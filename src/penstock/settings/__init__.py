"""Penstock's settings: penstock.toml, the environment and flags. Nothing else in the library reads them."""

from penstock.settings.settings import (
    Given,
    ResultBackendSettings,
    Setting,
    SettingOrigin,
    Settings,
    TaskQueueSettings,
    flag,
    json_schema,
)

__all__ = [
    "Given",
    "ResultBackendSettings",
    "Setting",
    "SettingOrigin",
    "Settings",
    "TaskQueueSettings",
    "flag",
    "json_schema",
]
