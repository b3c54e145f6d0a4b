"""What a worker asks of a result back-end, and how it saves through one that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.task import Result


async def save_all(backend: Any, results: Sequence[Result]) -> list[Result]:
    """Save results; return those that are stored now: where an earlier one was kept, that one, if it can be had."""
    if hasattr(backend, "save_many"):
        answers = list(await backend.save_many(results))
    else:
        answers = []
        for result in results:
            answers.append(await backend.save(result))
    stored = []
    for result, is_new in zip(results, answers, strict=True):
        earlier = None
        if is_new is False and hasattr(backend, "get"):
            earlier = await backend.get(result.task_id)
        stored.append(earlier if isinstance(earlier, Result) else result)
    return stored
