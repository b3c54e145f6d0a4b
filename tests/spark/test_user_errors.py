"""Functions, models and errors of users, in jobs: told in our words, whatever they say and whatever they want to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.payload.schemas import from_model
from penstock.spark.pipeline.steps import imported
from penstock.spark.runtime.errors import is_server_gone, one_line
from tests.helpers.failing_modules import FAILING, TOLD, Mute, write_module


@pytest.mark.parametrize("text", FAILING)
def test_modules_that_cannot_be_imported(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write_module(tmp_path, text, monkeypatch)
    with pytest.raises(ConfigurationError, match=FAILING[text]):
        imported("handler", f"{module}:handle")
    with pytest.raises(ConfigurationError, match=FAILING[text]):
        from_model(f"{module}:Order")


def test_errors_that_cannot_be_shown() -> None:
    assert one_line(Mute()) == TOLD
    assert not is_server_gone(Mute())
