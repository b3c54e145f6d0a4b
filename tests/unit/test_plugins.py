"""Plug-ins: found by name, imported only when asked for, each one alone with its defects."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from penstock import plugins
from penstock.errors import ConfigurationError
from penstock.plugins import Plugins

GROUP = "penstock.result_backends"


class Thing:
    def __init__(self, size: int = 1) -> None:
        if size < 0:
            raise RuntimeError("no size with s3cret")
        self.size = size


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    offered = [
        ("own", f"{__name__}:Thing"),
        ("missing", "no_such_package:Thing"),
        ("nameless", f"{__name__}:NoSuchThing"),
        ("lazy", "this.is.never:imported"),
        ("twice", "a:b"),
        ("twice", "c:d"),
        ("same", f"{__name__}:Thing"),
        ("same", f"{__name__}:Thing"),
        ("fs", "rival:FSBackend"),
    ]
    points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in offered)
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    return Plugins(GROUP, "thing", {"fs": "penstock.results:FSBackend", "built-in": f"{__name__}:Thing"})


def test_all_names_are_known_and_nothing_is_imported(things: Plugins) -> None:
    assert things.names() == ["built-in", "fs", "lazy", "missing", "nameless", "own", "same", "twice"]
    assert not {"no_such_package", "this", "rival"} & set(sys.modules)


def test_a_plug_in_is_loaded_beside_broken_ones(things: Plugins) -> None:
    assert things.load("own") is Thing
    assert things.load("built-in") is Thing
    assert things.load("same") is Thing
    assert things.make("own", {"size": 3}).size == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", r"thing 'missing' \(no_such_package:Thing\) cannot be imported: ModuleNotFoundError"),
        ("nameless", r"'nameless' .* cannot be imported: AttributeError"),
        ("twice", "several packages provide the thing 'twice': a:b, c:d; uninstall all but one"),
        ("fs", "several packages provide the thing 'fs': penstock.results:FSBackend, rival:FSBackend"),
        ("onw", "unknown thing 'onw'; did you mean 'own'. available: .*own"),
        ("qqq", "unknown thing 'qqq'; available:"),
    ],
)
def test_what_cannot_be_had_is_a_configuration_error(things: Plugins, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        things.load(name)


def test_a_failure_while_it_is_made_is_told_without_secrets(things: Plugins) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'own' cannot be created with \['size'\]: RuntimeError: no size with \*\*\*"
    ):
        things.make("own", {"size": -1}, masked=lambda text: text.replace("s3cret", "***"))


def test_the_sync_half_has_groups_and_built_ins_of_its_own(things: Plugins) -> None:
    twin = things.sync_counterpart()
    assert twin.group == "penstock.sync_result_backends"
    from penstock.sync.results import FSBackend

    assert twin.load("fs") is FSBackend
