"""The tables of penstock.toml as values, and what is known about each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from penstock.settings.masking import masked, masked_options

TableName = Literal["task_queue", "result_backend"]


@dataclass(frozen=True)
class Key:
    """What is known about one key of a table."""

    type: type[str | int | bool]
    default: str | int | bool
    meaning: str
    minimum: int | None = None


class _Masked:
    """Shows its values as `config show` does: without secrets."""

    def __repr__(self) -> str:
        shown = {name: masked(name, value) for name, value in vars(self).items() if name != "options"}
        shown["options"] = masked_options(vars(self)["options"])
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclass(frozen=True, repr=False)
class TaskQueueSettings(_Masked):
    """The table `[task_queue]`; `options` is the sub-table named after the provider."""

    provider: str = "redis"
    url: str = "redis://localhost:6379/0"
    idle_ms: int = 60_000
    max_retry: int = 3
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, repr=False)
class ResultBackendSettings(_Masked):
    """The table `[result_backend]`; `options` is the sub-table named after the provider."""

    provider: str = "fs"
    root: str = ".penstock/results"
    compress: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


TABLES: Final[Mapping[str, Mapping[str, Key]]] = {
    "task_queue": {
        "provider": Key(str, TaskQueueSettings.provider, "which task queue: redis, stub, or the name of a plug-in"),
        "url": Key(str, TaskQueueSettings.url, "where the task queue is"),
        "idle_ms": Key(
            int, TaskQueueSettings.idle_ms, "how long a task stays with a worker that gives no sign of life", minimum=1
        ),
        "max_retry": Key(
            int,
            TaskQueueSettings.max_retry,
            "how often a failed task is tried again before it is a dead letter",
            minimum=0,
        ),
    },
    "result_backend": {
        "provider": Key(
            str, ResultBackendSettings.provider, "where results go: fs, postgres, s3, or the name of a plug-in"
        ),
        "root": Key(str, ResultBackendSettings.root, "the folder of the file system back-end"),
        "compress": Key(bool, ResultBackendSettings.compress, "whether the file system back-end packs files with gzip"),
    },
}
assert set(TABLES) == set(get_args(TableName))
