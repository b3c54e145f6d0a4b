"""ResultBackend: what every back-end does, ours and those of plug-ins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from penstock.task import Result


@runtime_checkable
class ResultBackend(Protocol):
    """Keeps one result per task id: the first valid one, which nobody overwrites.

    A plug-in may have a class method `from_settings(settings)`, which gets the table `[result_backend]` as
    `penstock.settings.ResultBackendSettings`; without it, the class is called with the keys of its own sub-table.

    Raises: BackendUnavailable for what passes by itself, BackendRefused for what stays, EncodeError for a result that
    cannot be stored at all. After an error nothing half-written is visible, and the call may be repeated.
    """

    async def save(self, result: Result) -> bool:
        """Store the result and return True; return False if an earlier, different one is there, which stays.

        When it returns, the result survives a crash. Saving an identical result again returns True.
        """

    async def save_many(self, results: Sequence[Result]) -> list[bool]:
        """Store many results at the price of few; return for each what save() would."""

    async def get(self, task_id: str) -> Result | None:
        """Return the result of the task, or None if there is none."""

    def iter(self, kind: str | None = None) -> AsyncIterator[Result]:
        """Yield the results, or those of one kind, the oldest day first, without holding all of them in memory."""

    async def close(self) -> None:
        """Let go of connections and threads; may be called twice."""
