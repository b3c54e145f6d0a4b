"""What handlers return: a list of ids that are done, or a mapping of ids to what came out."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from penstock.errors import ConfigurationError
from penstock.model import StreamMessage

OUTPUT = "data"


def with_outputs(function: Callable[[list[StreamMessage]], Any]) -> Callable[[list[StreamMessage]], Any]:
    """Return the handler as one that always returns a mapping of ids to mappings, as the runner of steps wants it."""

    def call(messages: list[StreamMessage]) -> Any:
        answer = function(messages)
        return _later(answer) if inspect.isawaitable(answer) else _outputs(answer)

    return call


async def _later(answer: Awaitable[Any]) -> Any:
    return _outputs(await answer)


def _outputs(answer: Any) -> Mapping[str, Mapping[str, Any]]:
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        return {str(entry_id): {OUTPUT: output} for entry_id, output in answer.items()}
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise ConfigurationError(
            f"the handler must return a list of ids, or a mapping of ids to results, not {type(answer).__name__}"
        )
    return {str(entry_id): {} for entry_id in answer}
