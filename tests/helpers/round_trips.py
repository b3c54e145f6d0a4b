"""How often a client waits for the server: a pipeline, of however many commands, is one wait."""

from __future__ import annotations

from typing import Any

import pytest


def count_round_trips(monkeypatch: pytest.MonkeyPatch, connection: Any) -> list[int]:
    """Appends to the list that it returns, for each wait on such a connection, how many commands it is for."""
    kind, trips = type(connection), list[int]()
    really = kind.pipeline

    def counted(self: Any, commands: Any, *args: Any, **options: Any) -> Any:
        trips.append(len(commands))
        return really(self, commands, *args, **options)

    monkeypatch.setattr(kind, "pipeline", counted)
    return trips
