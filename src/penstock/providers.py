"""Makes the task queue and the result back-end that the settings name."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock import plugins
from penstock.errors import ConfigurationError
from penstock.plugins import Plugins
from penstock.results.backend import ResultBackend
from penstock.settings import ResultBackendSettings, Settings, TaskQueueSettings
from penstock.settings.masking import secrets_of, without_secrets

# Plug-ins for plain functions and threads are offered in groups of their own.
TASK_QUEUES = plugins.TASK_QUEUES  # sync: TASK_QUEUES = plugins.TASK_QUEUES.sync_counterpart()
RESULT_BACKENDS = plugins.RESULT_BACKENDS  # sync: RESULT_BACKENDS = plugins.RESULT_BACKENDS.sync_counterpart()


def make_task_queue(settings: Settings | TaskQueueSettings) -> Any:
    """Return the task queue that the settings name; never another one instead.

    A provider's class is made by its class method `from_settings(settings)`, given the table, or, without that, called
    with the keys of its own sub-table.

    Raises: ConfigurationError if the provider is unknown, cannot be imported, or refuses its settings.
    """
    return _made(TASK_QUEUES, settings.task_queue if isinstance(settings, Settings) else settings)


def make_result_backend(settings: Settings | ResultBackendSettings) -> ResultBackend:
    """Return the result back-end that the settings name; made and refused as a task queue is."""
    table = settings.result_backend if isinstance(settings, Settings) else settings
    backend = _made(RESULT_BACKENDS, table)
    if not isinstance(backend, ResultBackend):
        missing = [name for name in ("save", "save_many", "get", "iter", "close") if not hasattr(backend, name)]
        raise ConfigurationError(f"result back-end {table.provider!r} does not implement {', '.join(missing)}")
    return backend


def _made(offered: Plugins, table: TaskQueueSettings | ResultBackendSettings) -> Any:
    secrets = secrets_of({**vars(table), **table.options})
    masked = partial(without_secrets, secrets=secrets)
    return offered.make(table.provider, table.options, settings=table, masked=masked)
