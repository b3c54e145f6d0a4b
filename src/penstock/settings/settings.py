"""Settings: the values that hold, and where each came from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import SettingsError
from penstock.plugins import Plugins
from penstock.settings import environment as environment_variables
from penstock.settings import toml_file
from penstock.settings.masking import masked
from penstock.settings.origin import DEFAULT, Given, Origin
from penstock.settings.reading import checked
from penstock.settings.tables import TABLES, ResultBackendSettings, TaskQueueSettings

FILE_NAME: Final = "penstock.toml"
TASK_QUEUES: Final = Plugins(
    "penstock.task_queues",
    "task queue",
    {"redis": "penstock.tasks:RedisTaskQueue", "stub": "penstock.tasks:StubQueue"},
)
RESULT_BACKENDS: Final = Plugins(
    "penstock.result_backends",
    "result back-end",
    {
        "fs": "penstock.results:FSBackend",
        "postgres": "penstock.results:PostgresBackend",
        "s3": "penstock.results:S3Backend",
    },
)


@dataclass(frozen=True, repr=False)
class Setting:
    """One value, with its dotted name and its origin; `shown` is the value as it may be shown."""

    name: str
    value: Any
    origin: Origin

    @property
    def shown(self) -> Any:
        """The value without secrets."""
        return masked(self.name.rpartition(".")[2], self.value)

    def __repr__(self) -> str:
        return f"Setting({self.name}={self.shown!r}, from {self.origin})"


@dataclass(frozen=True)
class Settings:
    """The settings of Penstock, checked; `all` lists each value with its origin."""

    task_queue: TaskQueueSettings = field(default_factory=TaskQueueSettings)
    result_backend: ResultBackendSettings = field(default_factory=ResultBackendSettings)
    all: tuple[Setting, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Iterable[Given] = (),
    ) -> Settings:
        """Read the settings: flags before the environment, the environment before the file, the file before defaults.

        The file is `file`, else what the variable PENSTOCK_CONFIG names, else `penstock.toml` in the working directory,
        if there is one. `environment` stands for the environment of the process.

        Raises: SettingsError, in one line that names the place.
        """
        variables = os.environ if environment is None else environment
        path = find_file(file, variables)
        layers = [
            [] if path is None else toml_file.read(path),
            environment_variables.read(variables),
            list(flags),
        ]
        return _built(layers)


def flag(name: str, value: str, spelled: str | None = None) -> Given:
    """Return what the user gave for `table.key` on the command line, spelled as `--set` or as a flag of its own."""
    path = tuple(name.split("."))
    if len(path) not in (2, 3) or not all(path):
        raise SettingsError(f"--set {name}: write --set <table>.<key>=<value>, such as --set task_queue.idle_ms=5000")
    return Given(path, value, Origin("flag", spelled or f"--set {name}"))


def find_file(file: str | os.PathLike[str] | None, variables: Mapping[str, str]) -> Path | None:
    """Return the file to read; one that was named must exist."""
    variable = environment_variables.CONFIG_VARIABLE
    named = file if file is not None else variables.get(variable)
    if named is None or named == "":
        return Path(FILE_NAME) if Path(FILE_NAME).exists() else None
    path = Path(named)
    if not path.is_file():
        where = "" if file is not None else f"environment variable {variable}: "
        raise SettingsError(f"{where}the settings file {path} does not exist")
    return path


def _built(layers: list[list[Given]]) -> Settings:
    chosen: dict[tuple[str, ...], Given] = {}
    providers = _Providers()
    for layer in layers:
        seen: dict[tuple[str, ...], Given] = {}
        for given in layer:
            value = checked(given, providers)
            if value.path in seen:
                raise SettingsError(
                    f"{value.origin}: {value.name} is given twice, also by {seen[value.path].origin}: give it once"
                )
            seen[value.path] = value
        chosen |= seen
    return _assembled({path: given for path, given in chosen.items() if len(path) > 1})


class _Providers(dict[str, list[str]]):
    """The names of providers by table, looked up when first needed: that reads the metadata of all packages."""

    def __missing__(self, table: str) -> list[str]:
        plugins = {"task_queue": TASK_QUEUES, "result_backend": RESULT_BACKENDS}[table]
        self[table] = plugins.names()
        return self[table]


def _assembled(chosen: dict[tuple[str, ...], Given]) -> Settings:
    tables: dict[str, dict[str, Any]] = {}
    listed: list[Setting] = []
    for table, keys in TABLES.items():
        values: dict[str, Any] = {}
        for name, key in keys.items():
            given = chosen.get((table, name), Given((table, name), key.default, DEFAULT))
            values[name] = given.value
            listed.append(Setting(given.name, given.value, given.origin))
        own = {path: given for path, given in chosen.items() if path[0] == table and len(path) == 3}
        values["options"] = {path[2]: given.value for path, given in own.items() if path[1] == values["provider"]}
        listed += [Setting(given.name, given.value, given.origin) for given in own.values()]
        tables[table] = values
    return Settings(
        TaskQueueSettings(**tables["task_queue"]), ResultBackendSettings(**tables["result_backend"]), tuple(listed)
    )
