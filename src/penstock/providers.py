"""Makes the task queue and the result back-end that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import penstock.settings.settings as known
from penstock.errors import ConfigurationError, PenstockError
from penstock.plugins import Plugins
from penstock.results.backend import ResultBackend
from penstock.settings.masking import secrets_of
from penstock.settings.settings import Settings
from penstock.settings.tables import ResultBackendSettings, TaskQueueSettings

# Plug-ins for plain functions and threads are offered in groups of their own.
TASK_QUEUES = known.TASK_QUEUES  # sync: TASK_QUEUES = known.TASK_QUEUES.sync_twin()
RESULT_BACKENDS = known.RESULT_BACKENDS  # sync: RESULT_BACKENDS = known.RESULT_BACKENDS.sync_twin()


def make_task_queue(settings: Settings | TaskQueueSettings) -> Any:
    """Return the task queue that the settings name; never another one instead.

    A provider's class is made by its class method `from_settings(settings)`, given the table, or, without that, called
    with the keys of its own sub-table.

    Raises: ConfigurationError if the provider is unknown, cannot be imported, or refuses its settings.
    """
    table = settings.task_queue if isinstance(settings, Settings) else settings
    return _made(TASK_QUEUES, table.provider, table, table.options)


def make_result_backend(settings: Settings | ResultBackendSettings) -> ResultBackend:
    """Return the result back-end that the settings name; made and refused as a task queue is."""
    table = settings.result_backend if isinstance(settings, Settings) else settings
    backend = _made(RESULT_BACKENDS, table.provider, table, table.options)
    if not isinstance(backend, ResultBackend):
        missing = [name for name in ("save", "save_many", "get", "iter", "close") if not hasattr(backend, name)]
        raise ConfigurationError(f"result back-end {table.provider!r} lacks {', '.join(missing)}")
    return backend


def _made(plugins: Plugins, name: str, table: object, options: Mapping[str, object]) -> Any:
    secrets = secrets_of({**vars(table), **options})
    kind = plugins.load(name)
    make = getattr(kind, "from_settings", None)
    try:
        return kind(**options) if make is None else make(table)
    except PenstockError:
        raise
    except Exception as error:
        how = f"with the keys {sorted(options)} of its sub-table" if options else "from the settings"
        raise plugins.failure(name, how, error, secrets) from None
