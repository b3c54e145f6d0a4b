"""Errors of users' code are told in our words, whatever they say of themselves and whatever they want to end."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from penstock.cli.target import load_handlers
from penstock.errors import ConfigurationError, DecodeError, EncodeError, summary_of
from penstock.plugins import Plugins
from penstock.redis.translate import connect_error
from penstock.serializers import PickleSerializer
from tests.helpers.failing_modules import FAILING, TOLD, Mute, write_module


def fail() -> NoReturn:
    raise Mute


class Spoilt:
    """Fails while it is pickled."""

    def __reduce__(self) -> NoReturn:
        fail()


class Loading:
    """Fails while it is loaded."""

    def __reduce__(self) -> Any:
        return fail, ()


def test_the_class_and_the_text_of_an_error_are_told() -> None:
    assert summary_of(KeyError("address")) == "KeyError: 'address'"
    assert summary_of(SystemExit()) == "SystemExit"
    assert summary_of(Mute()) == f"Mute: {TOLD}"


@pytest.mark.parametrize("text", FAILING)
def test_modules_that_cannot_be_imported(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write_module(tmp_path, text, monkeypatch)
    with pytest.raises(ConfigurationError, match=FAILING[text]):
        load_handlers(f"{module}:handlers")
    with pytest.raises(ConfigurationError, match=FAILING[text]):
        Plugins("penstock.none", "thing", {"own": f"{module}:Thing"}).load("own")


def test_plug_ins_that_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError, match=TOLD):
        Plugins("penstock.none", "thing", {"mute": f"{__name__}:fail"}).make("mute", {})


def test_payloads_that_cannot_be_pickled_or_loaded() -> None:
    pickles = PickleSerializer(allow_pickle=True)
    with pytest.raises(EncodeError, match=TOLD):
        pickles.encode(Spoilt())
    with pytest.raises(DecodeError, match=TOLD):
        pickles.decode(pickle.dumps(Loading()))


def test_what_a_provider_of_passwords_raises() -> None:
    assert TOLD in str(connect_error(Mute(), "localhost:6379"))
